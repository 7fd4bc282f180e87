"""Load the definitions of groups for cells, with signed links to the inputs of their tasks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings

from controlplane import clock
from controlplane.contract.messages.orders import GroupSpec, Input
from controlplane.domain.cells.signed_links import VALID_SECONDS, link_key, sign_link
from controlplane.domain.cells.sync import GrownSpec
from controlplane.queries.attempts.artifacts import fetchable_path
from controlplane.queries.sql import decoded, rows

INPUT_PATH = "/api/v1/store/inputs/"
RESULTS_PATH = "/api/v1/store/results/"
OUTPUTS_PATH = "/api/v1/store/outputs/"

# Read when a cell fetches the launch context of an attempt.
_NOT_SENT = ("inputs", "output_base")

_FIELDS = frozenset(it.name for it in fields(GroupSpec))

Link = Callable[[str], str]
"""Returns a URL for a path, with which a cell that runs an attempt of a group may read it."""

LinkOfGroup = Callable[[int, str], str]
"""Returns a URL for a group and a path."""


def links_at(now: datetime) -> LinkOfGroup:
    """Return a maker of absolute signed links for cells, signed at `now`."""
    key = link_key(settings.SECRET_KEY)
    base = settings.CELLRUN.public_url
    expires = int(now.timestamp()) + VALID_SECONDS
    return lambda group, path: base + sign_link(key, path, expires=expires, group=group)


def links_of_group(group_id: int, now: datetime) -> Link:
    """Return a maker of absolute signed links for the cells of a group, signed at `now`."""
    return partial(links_at(now), group_id)


def browser_link(uid: UUID, item: Mapping[str, Any], *, now: datetime) -> str | None:
    """Return a signed link on this host to an artifact; None if it is not in the local store."""
    path = fetchable_path(uid, item)
    if path is None:
        return None
    expires = int(now.timestamp()) + VALID_SECONDS
    return sign_link(link_key(settings.SECRET_KEY), path, expires=expires)


@dataclass(frozen=True, slots=True)
class GroupSpecs:
    """Definitions by id, which is that of the group or of a `GrownSpec`, and errors by group."""

    read: dict[int, GroupSpec] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)


def load_group_specs(group_ids: Iterable[int], grown: Iterable[GrownSpec] = ()) -> GroupSpecs:
    """Return the definitions of groups, without unknown ones; links are signed now.

    Also those of the `grown` requests of tasks, each under its own id.
    """
    variants = {item.spec_id: item for item in grown}
    wanted = {*group_ids} | {item.group_id for item in variants.values()}
    specs = _load_groups(wanted)
    for spec_id, item in variants.items():
        spec = specs.read.get(item.group_id)
        if spec is not None:
            specs.read[spec_id] = replace(spec, id=spec_id, resources=item.resources)
    return specs


def _load_groups(group_ids: Iterable[int]) -> GroupSpecs:
    found = rows(
        """
        SELECT g.id, g.job_id, j.name, g.name, g.replicas, g.resources, g.launch, p.input_networks
        FROM controlplane_taskgroup g JOIN controlplane_job j ON j.id = g.job_id
        JOIN controlplane_pool p ON p.id = j.pool_id
        WHERE g.id = ANY(%s)
        """,
        [list(group_ids)],
        prepare=True,
    )
    launches = [(*row[:5], decoded(row[5]), decoded(row[6]), row[7]) for row in found]
    sources = _find_sources({row[1] for row in launches if _reads_results(row[6])})
    link = links_at(clock.now())
    specs = GroupSpecs()
    for row in launches:
        try:
            specs.read[row[0]] = _group_spec(row, partial(link, row[0]), sources)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            specs.unreadable[row[0]] = repr(error)
    return specs


def _reads_results(launch: Any) -> bool:
    return any("from_group" in item for item in _inputs_of(launch))


def _inputs_of(launch: Any) -> list[Any]:
    """Return the inputs of a definition that may be invalid."""
    inputs = launch.get("inputs") if isinstance(launch, dict) else None
    return [item for item in inputs if isinstance(item, dict)] if isinstance(inputs, list) else []


def _find_sources(job_ids: Iterable[int]) -> dict[tuple[int, str], int]:
    """Return the ids of the groups of jobs by (job, name)."""
    wanted = list(job_ids)
    if not wanted:
        return {}
    statement = "SELECT job_id, name, id FROM controlplane_taskgroup WHERE job_id = ANY(%s)"
    return {(job_id, name): group_id for job_id, name, group_id in rows(statement, [wanted])}


def _group_spec(
    row: tuple[Any, ...], link: Link, sources: Mapping[tuple[int, str], int]
) -> GroupSpec:
    group_id, job_id, job_name, name, replicas, resources, launch, networks = row
    # Omit unknown fields, of a newer version, only if they are empty: others must not be ignored.
    sent = {
        key: value
        for key, value in launch.items()
        if key not in _NOT_SENT and (value or key in _FIELDS)
    }
    unknown = sent.keys() - _FIELDS
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    identity = {"id": group_id, "job_id": job_id, "job_name": job_name, "group": name}
    spec = GroupSpec.read({**sent, **identity, "replicas": replicas, "resources": resources})
    inputs = tuple(_input(item, job_id, link, sources) for item in launch["inputs"])
    if not inputs:
        return spec
    # The present ones of the pool; bundles may contain URLs of submitters.
    if any(item.named or item.bundle for item in inputs):
        spec = replace(spec, input_networks=tuple(networks))
    return replace(spec, inputs=inputs)


def _input(
    item: Mapping[str, str], job_id: int, link: Link, sources: Mapping[tuple[int, str], int]
) -> Input:
    path = item["path"]
    if "from_group" in item:
        source = sources[job_id, item["from_group"]]
        if "output" in item:
            return Input(
                path=path, url=link(f"{OUTPUTS_PATH}{source}/{item['output']}"), bundle=True
            )
        return Input(path=path, url=link(f"{RESULTS_PATH}{source}"), bundle=True)
    if "url" in item:
        return Input(path=path, url=item["url"], sha256=item.get("sha256"), named=True)
    return Input(path=path, url=link(INPUT_PATH + item["sha256"]), sha256=item["sha256"])
