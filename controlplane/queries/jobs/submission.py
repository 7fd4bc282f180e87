"""What a submission is judged by: the tenancy it names, taken guids, cells, work in hand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.domain.constraints import Tags
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.state.states import OPEN, TERMINAL, CellState
from controlplane.models import Domain, Pool, Project
from controlplane.queries.sql import decoded, rows, scalar


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that has a guid already."""

    job_id: int
    spec_digest: str


def find_projects(names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """(project id, domain id) by (domain, project); unknown ones are absent."""
    wanted = set(names)
    found = Project.objects.filter(
        domain__name__in={domain for domain, _ in wanted},
        name__in={project for _, project in wanted},
    ).values_list("domain__name", "name", "id", "domain_id")
    return {
        (domain, name): (project_id, domain_id)
        for domain, name, project_id, domain_id in found
        if (domain, name) in wanted
    }


def find_domains(names: Iterable[str]) -> set[str]:
    """Those of `names` that are domains."""
    return set(Domain.objects.filter(name__in=set(names)).values_list("name", flat=True))


def find_pools(names: Iterable[str]) -> dict[str, Pool]:
    """The pools among `names`, by name."""
    return {pool.name: pool for pool in Pool.objects.filter(name__in=set(names))}


@dataclass(frozen=True, slots=True)
class CapacityConcerns:
    """Where a submission needs a closer check: pools, and whether any quota applies."""

    pool_ids: frozenset[int]
    has_quotas: bool


# Cell c has what shape s asks for besides room: its type, the labels, the tags both ways.
_MATCHES = """
c.pool_id = s.pool_id AND s.task_type = ANY (c.task_types) AND NOT EXISTS (
    SELECT FROM unnest(c.tags) AS t (tag)
    WHERE right(t.tag, 1) <> '?' AND NOT s.tags::jsonb ? t.tag
) AND NOT EXISTS (
    SELECT FROM jsonb_array_elements_text(s.tags::jsonb) AS a (tag)
    WHERE a.tag <> ALL (c.tags) AND a.tag || '?' <> ALL (c.tags)
) AND NOT EXISTS (
    SELECT FROM jsonb_to_recordset(s.constraints::jsonb) AS k (key text, op text,
        "values" jsonb), LATERAL (SELECT c.labels ->> k.key) AS l (label)
    WHERE NOT CASE
        WHEN k.op = 'exists' THEN l.label IS NOT NULL
        WHEN k.op = 'not_exists' THEN l.label IS NULL
        WHEN k.op = 'ne' THEN l.label IS DISTINCT FROM k."values" ->> 0
        WHEN l.label IS NULL THEN false
        WHEN k.op IN ('eq', 'in') THEN k."values" ? l.label
        WHEN l.label !~ '^[-+]?[0-9]+(\\.[0-9]+)?$' THEN false
        WHEN k.op = 'gt' THEN l.label::numeric > (k."values" ->> 0)::numeric
        WHEN k.op = 'ge' THEN l.label::numeric >= (k."values" ->> 0)::numeric
        WHEN k.op = 'lt' THEN l.label::numeric < (k."values" ->> 0)::numeric
        ELSE l.label::numeric <= (k."values" ->> 0)::numeric
    END
)
"""
_STRAITS = f"""
SELECT
    ARRAY(
        SELECT DISTINCT s.pool_id
        FROM unnest(%(pool_id)s::bigint[], %(task_type)s::text[], %(resources)s::text[],
            %(tags)s::text[], %(constraints)s::text[])
            AS s (pool_id, task_type, resources, tags, constraints)
        WHERE NOT EXISTS (
            SELECT FROM controlplane_cell c WHERE {_MATCHES} AND NOT EXISTS (
                SELECT FROM jsonb_each_text(s.resources::jsonb) AS r (name, amount)
                WHERE coalesce((c.capacity ->> r.name)::bigint, 0) < r.amount::bigint
            )
        ) AND EXISTS (SELECT FROM controlplane_cell c WHERE {_MATCHES})
    ),
    EXISTS (
        SELECT FROM controlplane_quota q
        WHERE q.user_id = %(owner_id)s OR q.project_id = ANY (%(project)s::bigint[])
           OR q.domain_id = ANY (%(domain)s::bigint[])
    )
"""


def find_straits(
    shapes: Iterable[tuple[int, str, str, str, str]],
    owner_id: int,
    places: Iterable[tuple[int, int]],
) -> CapacityConcerns:
    """Return pools in which some shape is larger than all matching cells, even empty; and quotas.

    A shape is (pool id, task type, resources without tokens, placement tags, required constraints),
    the last three as JSON, a place (project id, domain id). Usually there are none, and one of the
    first cells proves it: then a submission needs only this.
    """
    distinct, found = sorted(set(shapes)), sorted(set(places))
    names = ("pool_id", "task_type", "resources", "tags", "constraints")
    parameters: dict[str, Any] = {
        **{name: [shape[part] for shape in distinct] for part, name in enumerate(names)},
        "owner_id": owner_id,
        "project": [project for project, _ in found],
        "domain": sorted({domain for _, domain in found}),
    }
    [(pool_ids, has_quotas)] = rows(_STRAITS, parameters)
    return CapacityConcerns(frozenset(pool_ids), has_quotas)


def find_offered_cells(pool_ids: Iterable[int]) -> dict[int, tuple[CellFacts, ...]]:
    """Return by pool every cell that ever registered, present or not; holding nothing."""
    cells: dict[int, list[CellFacts]] = {}
    found = rows(
        """
        SELECT pool_id, id, name, state, capacity, task_types, labels, tags
        FROM controlplane_cell WHERE pool_id = ANY(%s) AND capacity <> '{}' ORDER BY name
        """,
        [sorted(set(pool_ids))],
    )
    for pool_id, key, name, state, capacity, task_types, labels, tags in found:
        offered = CellFacts(
            cell_id=key,
            name=name,
            state=CellState(state),
            incarnation="",
            capacity=decoded(capacity),
            used={},
            task_types=frozenset(task_types),
            labels=decoded(labels),
            tags=Tags.read(tags),
        )
        cells.setdefault(pool_id, []).append(offered)
    return {pool_id: tuple(listed) for pool_id, listed in cells.items()}


def find_guids(guids: Sequence[tuple[int, str]]) -> Mapping[tuple[int, str], KnownJob]:
    """The jobs that have one of `guids` (project id, guid)."""
    if not guids:
        return {}
    found = rows(
        """
        SELECT project_id, guid, id, spec_digest FROM controlplane_job
        WHERE (project_id, guid) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))
          AND deleted_at IS NULL
        """,
        [[project for project, _ in guids], [guid for _, guid in guids]],
    )
    return {
        (project_id, guid): KnownJob(job_id, digest) for project_id, guid, job_id, digest in found
    }


def find_referenced(project_ids: Iterable[int], ids: Iterable[int]) -> dict[int, int]:
    """The projects of those of the jobs `ids` that are there, in one of the projects; by id."""
    found = rows(
        """
        SELECT id, project_id FROM controlplane_job
        WHERE id = ANY(%s) AND project_id = ANY(%s) AND deleted_at IS NULL
        """,
        [sorted(set(ids)), sorted(set(project_ids))],
    )
    return dict(found)


def find_unfinished_named(
    owner_id: int, names: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], list[int]]:
    """Unfinished jobs of the user by (project id, name), newest last."""
    return _find_named("finished_at IS NULL", owner_id, names)


def find_settling_named(
    owner_id: int, names: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], list[int]]:
    """Return jobs of the user that have ended and still hold containers, by (project id, name).

    Without the deleted ones, which no job can wait for.
    """
    ended = ", ".join(f"{state:d}" for state in sorted(TERMINAL))
    condition = f"state IN ({ended}) AND settled_at IS NULL AND deleted_at IS NULL"
    return _find_named(condition, owner_id, names)


def _find_named(
    condition: str, owner_id: int, names: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], list[int]]:
    wanted = sorted(set(names))
    found = rows(
        f"""
        SELECT project_id, name, id FROM controlplane_job
        WHERE owner_id = %s AND {condition}
          AND (project_id, name) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))
        ORDER BY id
        """,
        [owner_id, [project for project, _ in wanted], [name for _, name in wanted]],
    )
    named: dict[tuple[int, str], list[int]] = {}
    for project_id, name, job_id in found:
        named.setdefault((project_id, name), []).append(job_id)
    return named


# Arrays of PostgreSQL begin at 1, counts at state 0.
_OPEN_COUNT = " + ".join(f"g.counts[{state + 1}]" for state in sorted(OPEN))


def count_open_tasks_of(user_id: int) -> int:
    """Tasks of a user's unfinished jobs that have not ended."""
    found = scalar(
        f"""
        SELECT coalesce(sum({_OPEN_COUNT}), 0)
        FROM controlplane_job j JOIN controlplane_taskgroup g ON g.job_id = j.id
        WHERE j.owner_id = %s AND j.finished_at IS NULL
        """,
        [user_id],
    )
    return int(found)
