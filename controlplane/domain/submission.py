"""From a submitted job to the rows it becomes, or to why it cannot be taken; pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.errors import CellrunError, Conflict
from controlplane.domain.placement.amounts import describe_shortfall, shortfall
from controlplane.domain.states import Band, Exclusive
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.job import minimum_of

_RESOURCE_FIELDS = {"cpu_millis": "cpu", "memory_mib": "memory", "disk_mib": "disk"}

# Fields that a cell is told as they are; inputs and quantities need a hand.
_TOLD = (
    "task_type",
    "image",
    "command",
    "entrypoint",
    "workdir",
    "user",
    "env",
    "result_file",
    "timeout_seconds",
    "stop_grace_seconds",
    "stop_signal",
    "pull_policy",
    "network",
    "max_pids",
    "read_only",
)


_EXCLUSIVE = {False: Exclusive.NO, True: Exclusive.LEASE, "strict": Exclusive.STRICT}


class JobsRefused(CellrunError):
    """Some jobs of one submission cannot be taken, so none is. `faults`: (position, fault)."""

    def __init__(self, faults: Sequence[tuple[int, Fault]]) -> None:
        super().__init__("; ".join(str(fault) for _, fault in faults))
        self.faults = tuple(faults)


class GuidTaken(Conflict):
    """A different job has the guid of the job at `position` already."""

    def __init__(self, position: int, guid: str, job_id: int | None) -> None:
        whose = "another job of the same submission" if job_id is None else f"job {job_id}"
        super().__init__(f"guid {guid} belongs to {whose}, which was submitted differently")
        self.position = position


class NameTaken(Conflict):
    """The job at `position` may not have the name of the unfinished job `job_id`."""

    def __init__(self, position: int, name: str, job_id: int) -> None:
        super().__init__(
            f"job {job_id}, which is named {name}, has not ended (existing_job_policy: error)"
        )
        self.position = position


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A row of the groups, all but its ids. `contents`: what the inputs named in `launch` hold."""

    name: str
    position: int
    replicas: int
    indices: Sequence[int]
    min_available: int
    explicit_minimum: bool
    resources: Mapping[str, int]
    task_type: str
    constraints: Sequence[Constraint]
    placement_tags: Sequence[str]
    launch: Mapping[str, Any]
    contents: Mapping[str, bytes]
    depends_on: Sequence[Mapping[str, str]]
    retries: tuple[int, int, int]
    at_most_once: bool
    exclusive: Exclusive
    timeout_seconds: float | None
    startable_at: datetime | None
    deadline_at: datetime | None


@dataclass(frozen=True, slots=True)
class OfferedCell:
    """A cell of a pool, as large as it is when it is empty."""

    name: str
    capacity: Mapping[str, int]
    task_types: Sequence[str]


def digest_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """The body as JSON text, and its digest: equal for equal jobs in any order or language."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return text, hashlib.sha256(text.encode()).hexdigest()


def band_of(spec: JobSpec) -> Band:
    """The band that a job names."""
    return Band[spec.band.upper()]


def plan_groups(
    spec: JobSpec, *, now: datetime, timeout_seconds: float | None
) -> list[PlannedGroup]:
    """The groups of a job submitted at `now`, its scheduling timeout being `timeout_seconds`.

    What waits for other jobs may not start yet, and has no deadline.
    """
    return [
        _plan_group(spec, group, position, now, timeout_seconds)
        for position, group in enumerate(spec.groups)
    ]


def _plan_group(
    spec: JobSpec,
    group: TaskGroupSpec,
    position: int,
    now: datetime,
    timeout_seconds: float | None,
) -> PlannedGroup:
    depends_on = [{"group": d.group, "until": d.until} for d in group.dependencies()]
    waits = bool(depends_on) or waits_for_jobs(spec)
    startable_at = None if waits else max(now, spec.start_after or now)
    deadline_at = None
    if startable_at is not None and timeout_seconds is not None:
        deadline_at = startable_at + timedelta(seconds=timeout_seconds)
    retries = spec.retries_of(group)
    launch, contents = launch_of(group, exclusive=bool(spec.exclusive_of(group)))
    return PlannedGroup(
        name=group.name,
        position=position,
        replicas=group.replicas,
        indices=range(group.replicas),
        min_available=minimum_of(group),
        explicit_minimum=group.min_available is not None,
        resources=group.resources.amounts(),
        task_type=group.task_type,
        constraints=constraints_of(spec, group),
        placement_tags=tuple(spec.tags_of(group)),
        launch=launch,
        contents=contents,
        depends_on=depends_on,
        retries=(retries.failure, retries.preemption, retries.system),
        at_most_once=spec.runs_at_most_once(group),
        exclusive=_EXCLUSIVE[spec.exclusive_of(group)],
        timeout_seconds=group.timeout_seconds,
        startable_at=startable_at,
        deadline_at=deadline_at,
    )


def constraints_of(spec: JobSpec, group: TaskGroupSpec) -> tuple[Constraint, ...]:
    """What the group asks of the labels of cells, as placement knows it."""
    return tuple(
        Constraint(item.key, Operator(item.op), tuple(item.values), item.required)
        for item in spec.constraints_of(group)
    )


def waits_for_jobs(spec: JobSpec) -> bool:
    """Whether the job begins by waiting for others: those it depends on, or replaces."""
    return bool(spec.depends_on) or spec.existing_job_policy == "replace"


def launch_of(group: TaskGroupSpec, *, exclusive: bool) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a cell is told of `group`, and the contents of its inputs by SHA-256."""
    launch: dict[str, Any] = {name: getattr(group, name) for name in _TOLD}
    launch["exclusive"] = exclusive
    launch["shm_mib"] = group.shm
    inputs: list[dict[str, str]] = []
    contents: dict[str, bytes] = {}
    for item in group.inputs:
        if item.from_ is not None:
            inputs.append({"path": item.path, "from_group": item.from_.group})
        elif item.content is not None:
            content = item.content.encode()
            digest = hashlib.sha256(content).hexdigest()
            contents[digest] = content
            inputs.append({"path": item.path, "sha256": digest})
    launch["inputs"] = inputs
    return launch, contents


def find_size_faults(
    spec: JobSpec, cells: Sequence[OfferedCell], *, is_short: bool, max_tasks: int
) -> list[Fault]:
    """What makes a job too large: more tasks than are taken, or larger ones than any cell holds."""
    faults = []
    if spec.total_replicas() > max_tasks:
        text = f"{spec.total_replicas()} tasks are more than the {max_tasks} that a job may have"
        field = "replicas" if is_short else _field_of_replicas(spec)
        faults.append(Fault(field, text))
    if spec.allow_unsatisfiable:
        return faults
    for position, group in enumerate(spec.groups):
        lacking = lacks_everywhere(group.resources.amounts(), group.task_type, cells)
        if lacking is not None:
            cell, lacks = lacking
            name = next(iter(lacks))
            prefix = "" if is_short else f"groups[{position}]."
            text = (
                f"larger than every cell of pool {spec.pool}: {cell} comes closest and lacks"
                f" {describe_shortfall(lacks)} (allow_unsatisfiable: true takes the job anyway)"
            )
            faults.append(Fault(f"{prefix}resources.{_RESOURCE_FIELDS.get(name, name)}", text))
    return faults


def _field_of_replicas(spec: JobSpec) -> str:
    largest = max(range(len(spec.groups)), key=lambda n: spec.groups[n].replicas)
    return f"groups[{largest}].replicas"


def lacks_everywhere(
    resources: Mapping[str, int], task_type: str, cells: Sequence[OfferedCell]
) -> tuple[str, dict[str, int]] | None:
    """The cell that comes closest and what it lacks, if `resources` fit in none even when empty.

    None too if no cell of that task type has ever been there: one may come.
    """
    best: tuple[float, str, dict[str, int]] | None = None
    for cell in cells:
        if task_type not in cell.task_types:
            continue
        lacks = shortfall(resources, cell.capacity)
        if not lacks:
            return None
        distance = max(lack / max(cell.capacity.get(name, 0), 1) for name, lack in lacks.items())
        if best is None or (distance, cell.name) < best[:2]:
            best = (distance, cell.name, lacks)
    return best[1:] if best else None
