"""Load the facts of a submission: pools, projects, guids, capacity, quotas, secrets, names."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from django.conf import settings

from controlplane.domain.constraints import Tags
from controlplane.domain.hooks.built_in import BUILT_IN
from controlplane.domain.jobs.admission import ExistingJob, SubmissionFacts, secrets_of
from controlplane.domain.jobs.bands import LimitedScope
from controlplane.domain.jobs.satisfiability import AdmissionPool
from controlplane.domain.jobs.stored_bytes import LimitedStorage
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.scopes import Scope, ScopeKind, scopes_of
from controlplane.domain.state.states import OPEN, TERMINAL, CellState
from controlplane.queries.jobs.rerun import RetriedJob
from controlplane.queries.placement.quotas import find_limits
from controlplane.queries.sql import decoded, encoded, rows
from controlplane.queries.tenancy.secrets import find_servers
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes
from controlplane.spec import JobSpec
from controlplane.spec.limits import JobLimits


def load_submission_facts(
    specs: Sequence[JobSpec], *, owner_id: int, now: datetime
) -> SubmissionFacts:
    """Return the facts to validate `specs`, by one statement for each kind of fact.

    Guids, cells, limits and secrets are read only if some job must be checked: not those that exist
    already or whose pool or project is unknown.
    """
    pools = _load_pools("name = ANY(%s)", sorted({spec.pool for spec in specs}))
    projects, archived = _load_projects({(spec.domain, spec.project) for spec in specs})
    located = [
        (spec, *projects[spec.domain, spec.project])
        for spec in specs
        if spec.pool in pools and (spec.domain, spec.project) in projects
    ]
    jobs = find_guids([(project, spec.guid) for spec, project, _ in located if spec.guid])
    new = [place for place in located if (place[1], place[0].guid) not in jobs]
    checked = [place for place in new if not place[0].allow_unsatisfiable]
    cells = _load_capacity(checked, pools) if checked else {}
    named = [(project_id, name) for spec, project_id, _ in checked for _, name in secrets_of(spec)]
    limits = _load_limits(owner_id, [place for _, *place in new])
    return SubmissionFacts(
        owner_id=owner_id,
        now=now,
        pools={
            name: replace(pool, cells=cells.get(pool.pool_id, ())) for name, pool in pools.items()
        },
        projects=projects,
        archived=archived,
        jobs=jobs,
        limits=limits,
        storage=_load_storage(limits),
        secrets=find_servers(named),
        max_tasks_per_job=settings.CELLRUN.max_tasks_per_job,
        callback_networks=settings.CELLRUN.callback_allowed_networks,
    )


def load_rerun_facts(
    spec: JobSpec, job: RetriedJob, *, now: datetime
) -> tuple[AdmissionPool, SubmissionFacts]:
    """Return the pool of a job, and the facts to validate its retry.

    Cells are read only if its hook may change what it requires.
    """
    [pool] = _load_pools("id = ANY(%s)", [job.pool_id]).values()
    secrets = find_servers((job.project_id, name) for _, name in secrets_of(spec))
    is_fixed = spec.kind in BUILT_IN or spec.allow_unsatisfiable
    places = [] if is_fixed else [(spec, job.project_id, job.domain_id)]
    cells = _load_capacity(places, {spec.pool: pool}) if places else {}
    limits = _load_limits(job.owner_id, [(job.project_id, job.domain_id)])
    facts = SubmissionFacts(
        owner_id=job.owner_id,
        now=now,
        limits=limits,
        storage=_load_storage(limits),
        secrets=secrets,
        max_tasks_per_job=settings.CELLRUN.max_tasks_per_job,
        callback_networks=settings.CELLRUN.callback_allowed_networks,
    )
    return replace(pool, cells=cells.get(pool.pool_id, ())), facts


def _load_pools(condition: str, keys: Sequence[object]) -> dict[str, AdmissionPool]:
    """Return by name the pools and their policies for new jobs, without their cells."""
    found = rows(
        f"""
        SELECT id, name, tokens, validators, allowed_mounts, privileged_allowed,
               allowed_capabilities, job_limits
        FROM controlplane_pool WHERE {condition}
        """,
        [list(keys)],
        prepare=True,
    )
    return {
        name: AdmissionPool(
            pool_id=key,
            name=name,
            tokens=decoded(tokens),
            validators=validators,
            allowed_mounts=decoded(mounts),
            privileged_allowed=privileged,
            allowed_capabilities=capabilities,
            job_limits=JobLimits.model_validate(decoded(limits)),
        )
        for key, name, tokens, validators, mounts, privileged, capabilities, limits in found
    }


def _load_projects(
    names: Set[tuple[str, str]],
) -> tuple[dict[tuple[str, str], tuple[int, int]], frozenset[int]]:
    """Return (project id, domain id) by (domain, project), and the ids of archived projects."""
    found = rows(
        """
        SELECT d.name, p.name, p.id, p.domain_id, p.archived_at
        FROM controlplane_project p JOIN controlplane_domain d ON d.id = p.domain_id
        WHERE (d.name, p.name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
        """,
        [[domain for domain, _ in names], [project for _, project in names]],
        prepare=True,
    )
    return (
        {(domain, name): (key, domain_id) for domain, name, key, domain_id, _ in found},
        frozenset(key for _, _, key, _, archived_at in found if archived_at is not None),
    )


def _load_capacity(
    jobs: Sequence[tuple[JobSpec, int, int]], pools: Mapping[str, AdmissionPool]
) -> dict[int, tuple[CellFacts, ...]]:
    """Return by pool the cells of pools in which some task may be too large.

    `jobs`: (spec, project id, domain id).
    """
    shapes: list[Shape] = []
    pool_ids: set[int] = set()
    for spec, _, _ in jobs:
        pool = pools[spec.pool]
        if spec.kind in BUILT_IN:
            shapes += capacity_shapes(spec, pool)
        else:  # Its hook may change the shapes after these facts are loaded.
            pool_ids.add(pool.pool_id)
    return find_offered_cells(pool_ids | precheck_capacity(shapes))


def _load_limits(owner_id: int, places: Iterable[Sequence[int]]) -> dict[Scope, LimitedScope]:
    """Return the limits of the owner, and of the projects and domains of `places`."""
    scopes = {scope for place in places for scope in scopes_of(owner_id, *place)}
    return {limited.scope: limited for limited in find_limits(scopes)}


def _load_storage(limits: Mapping[Scope, LimitedScope]) -> dict[int, LimitedStorage]:
    """Return the storage of the projects among `limits` that have a limit, by id."""
    limited = {
        scope.key: (item.name, item.stored_bytes)
        for scope, item in limits.items()
        if scope.kind is ScopeKind.PROJECT and item.stored_bytes is not None
    }
    used = count_stored_bytes(limited)
    return {key: LimitedStorage(name, limit, used[key]) for key, (name, limit) in limited.items()}


Shape = tuple[int, str, str, str, str]
"""Pool id, task type; in JSON: resources without tokens, placement tags, required constraints."""


def capacity_shapes(spec: JobSpec, pool: AdmissionPool) -> Iterator[Shape]:
    """Yield the requirements of the groups of a job in `pool`."""
    for group in spec.groups:
        amounts = group.resources.amounts()
        of_cells = {name: n for name, n in amounts.items() if name not in pool.tokens}
        tags = encoded(spec.tags_of(group))
        required = [item.model_dump() for item in spec.constraints_of(group) if item.required]
        yield pool.pool_id, group.task_type, encoded(of_cells), tags, encoded(required)


# Cell c satisfies shape s apart from capacity: task type, labels, tags in both directions.
CELL_MATCHES = """
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
_PRECHECK = f"""
SELECT
    ARRAY(
        SELECT DISTINCT s.pool_id
        FROM unnest(%(pool_id)s::bigint[], %(task_type)s::text[], %(resources)s::text[],
            %(tags)s::text[], %(constraints)s::text[])
            AS s (pool_id, task_type, resources, tags, constraints)
        WHERE NOT EXISTS (
            SELECT FROM controlplane_cell c WHERE {CELL_MATCHES} AND NOT EXISTS (
                SELECT FROM jsonb_each_text(s.resources::jsonb) AS r (name, amount)
                WHERE coalesce((c.capacity ->> r.name)::bigint, 0) < r.amount::bigint
            )
        ) AND EXISTS (SELECT FROM controlplane_cell c WHERE {CELL_MATCHES})
    )
"""


def precheck_capacity(shapes: Iterable[Shape]) -> frozenset[int]:
    """Return the pools in which some shape exceeds all matching cells, even empty ones.

    Usually there is no such pool, and one of the first cells proves it.
    """
    distinct = sorted(set(shapes))
    names = ("pool_id", "task_type", "resources", "tags", "constraints")
    parameters = {name: [shape[part] for shape in distinct] for part, name in enumerate(names)}
    [(pool_ids,)] = rows(_PRECHECK, parameters, prepare=True)
    return frozenset(pool_ids)


def find_offered_cells(pool_ids: Collection[int]) -> dict[int, tuple[CellFacts, ...]]:
    """Return by pool every cell that has ever registered, in any state, without usage."""
    if not pool_ids:
        return {}
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


def find_guids(guids: Iterable[tuple[int, str]]) -> dict[tuple[int, str], ExistingJob]:
    """Return the jobs with one of `guids` (project id, guid)."""
    wanted = list(guids)
    if not wanted:
        return {}
    found = rows(
        """
        SELECT project_id, guid, id, spec_digest FROM controlplane_job
        WHERE (project_id, guid) IN (SELECT * FROM unnest(%s::bigint[], %s::text[]))
          AND deleted_at IS NULL
        """,
        [[project for project, _ in wanted], [guid for _, guid in wanted]],
    )
    return {
        (project_id, guid): ExistingJob(job_id, digest)
        for project_id, guid, job_id, digest in found
    }


def find_referenced(project_ids: Iterable[int], ids: Iterable[int]) -> dict[int, int]:
    """Return by job id the project of the existing jobs among `ids` in one of the projects."""
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
    """Return the unfinished jobs of the user by (project id, name), newest last."""
    return _find_named("finished_at IS NULL", owner_id, names)


def find_settling_named(
    owner_id: int, names: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], list[int]]:
    """Return ended jobs of the user that still hold containers, by (project id, name).

    Exclude deleted jobs, for which no job can wait.
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
OPEN_COUNT = " + ".join(f"g.counts[{state + 1}]" for state in sorted(OPEN))


class SubmittedTasks(NamedTuple):
    """A number of tasks, and the last id that was drawn for a job of any user before."""

    tasks: int
    last_job: int


_LAST_JOB = "coalesce(pg_sequence_last_value(pg_get_serial_sequence('controlplane_job', 'id')), 0)"


def count_open_tasks_of(user_id: int) -> SubmittedTasks:
    """Return the number of open tasks of a user's unfinished jobs."""
    statement = f"""
        SELECT coalesce(sum({OPEN_COUNT}), 0)::bigint, {_LAST_JOB}
        FROM controlplane_job j JOIN controlplane_taskgroup g ON g.job_id = j.id
        WHERE j.owner_id = %s AND j.finished_at IS NULL
        """
    return SubmittedTasks(*rows(statement, [user_id])[0])


def count_tasks_submitted_since(user_id: int, job_id: int) -> SubmittedTasks:
    """Return the number of tasks, also ended ones, of a user's jobs after `job_id`.

    A join would read all groups of a new database, whose tables have no statistics.
    """
    statement = f"""
        SELECT coalesce(sum((
            SELECT sum(g.task_count) FROM controlplane_taskgroup g WHERE g.job_id = j.id
        )), 0)::bigint, {_LAST_JOB}
        FROM controlplane_job j WHERE j.id > %s AND j.owner_id = %s
        """
    return SubmittedTasks(*rows(statement, [job_id, user_id], prepare=True)[0])
