"""Submission: convert a submitted job to rows, or to the faults that reject it; pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.errors import CellrunError, Conflict
from controlplane.domain.hooks.calls import is_lifetime, longest_of, told_of
from controlplane.domain.state.states import Band, Exclusive
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.files import body_of

# Fields that an order contains unchanged; inputs and quantities are converted.
_COPIED = (
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
    "max_pids",
    "read_only",
    "registry_secret",
    "checkpoint_path",
    "output_base",
    "privileged",
    "capabilities",
)
# Fields that are stored only if set, because few groups use them.
_STORED_IF_SET = ("registry_secret", "checkpoint_path", "output_base", "privileged", "capabilities")
_OPTIONS = ("secrets", "outputs", "mounts", "tmpfs")


_EXCLUSIVE = {False: Exclusive.NO, True: Exclusive.LEASE, "strict": Exclusive.STRICT}


class JobsRefused(CellrunError):
    """Rejection of a whole submission for faults of some jobs. `faults`: (position, fault)."""

    def __init__(self, faults: Sequence[tuple[int, Fault]]) -> None:
        super().__init__("; ".join(str(fault) for _, fault in faults))
        self.faults = tuple(faults)


class GuidTaken(Conflict):
    """A different job has the guid of the job at `position` already."""

    def __init__(self, position: int, guid: str, job_id: int | None) -> None:
        owner = "another job of the same submission" if job_id is None else f"job {job_id}"
        super().__init__(f"guid {guid} belongs to {owner}, which was submitted differently")
        self.position = position


class TaskGuidTaken(Conflict):
    """Another one-off task or a job (`holder`) has the guid already."""

    def __init__(self, guid: str, holder: str | None) -> None:
        super().__init__(f"guid {guid} belongs to {holder or 'another task'} already")


class NameTaken(Conflict):
    """The job at `position` may not have the name of the unfinished job `job_id`."""

    def __init__(self, position: int, name: str, job_id: int) -> None:
        super().__init__(
            f"job {job_id}, which is named {name}, has not ended (existing_job_policy: error)"
        )
        self.position = position


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group row without its ids. `contents`: of the inputs in `launch`, by SHA-256.

    `prepared`: the fields that the job's kind set.
    """

    name: str
    position: int
    replicas: int
    indices: Sequence[int]
    min_available: int
    resources: Mapping[str, int]
    task_type: str
    constraints: Sequence[Constraint]
    placement_tags: Sequence[str]
    launch: Mapping[str, Any]
    contents: Mapping[str, bytes]
    depends_on: Sequence[Mapping[str, str]]
    retries: tuple[int, int, int]
    retry_permanent: bool
    at_most_once: bool
    exclusive: Exclusive
    timeout_seconds: float | None
    timeout_is_lifetime: bool
    startable_at: datetime | None
    deadline_at: datetime | None
    prepared: Mapping[str, Any] = field(default_factory=dict)


def digest_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the body as canonical JSON text, and the SHA-256 digest of that text."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return text, hashlib.sha256(text.encode()).hexdigest()


def band_of(spec: JobSpec) -> Band:
    """Return the band that a job names."""
    return Band[spec.band.upper()]


def plan_groups(
    spec: JobSpec,
    *,
    now: datetime,
    timeout_seconds: float | None,
    changes: Sequence[Mapping[str, Any]] = (),
) -> list[PlannedGroup]:
    """Return the groups of a job submitted at `now` with a scheduling timeout in seconds.

    A group that waits for other groups or jobs may not start yet, and has no deadline. `changes`:
    fields that the job's kind set, by group.
    """
    planned = [
        _plan_group(spec, group, position, minimum, now, timeout_seconds)
        for position, (group, minimum) in enumerate(zip(spec.groups, spec.minima(), strict=True))
    ]
    if not any(changes):
        return planned
    return [replace(group, prepared=shown) for group, shown in zip(planned, changes, strict=True)]


def _plan_group(
    spec: JobSpec,
    group: TaskGroupSpec,
    position: int,
    minimum: int,
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
    launch, contents = launch_of(
        group,
        exclusive=bool(spec.exclusive_of(group)),
        network=spec.network_of(group),
        is_gang=spec.coscheduled,
    )
    launch |= told_of(group)
    return PlannedGroup(
        name=group.name,
        position=position,
        replicas=group.replicas,
        indices=range(group.replicas),
        min_available=minimum,
        resources=group.resources.amounts(),
        task_type=group.task_type,
        constraints=constraints_of(spec, group),
        placement_tags=tuple(spec.tags_of(group)),
        launch=launch,
        contents=contents,
        depends_on=depends_on,
        retries=(retries.failure, retries.preemption, retries.system),
        retry_permanent=spec.retries_permanent(group),
        at_most_once=spec.runs_at_most_once(group),
        exclusive=_EXCLUSIVE[spec.exclusive_of(group)],
        timeout_seconds=longest_of(group),
        timeout_is_lifetime=is_lifetime(group),
        startable_at=startable_at,
        deadline_at=deadline_at,
    )


def constraints_of(spec: JobSpec, group: TaskGroupSpec) -> tuple[Constraint, ...]:
    """Return the label constraints of the group for placement."""
    return tuple(
        Constraint(item.key, Operator(item.op), tuple(item.values), item.required)
        for item in spec.constraints_of(group)
    )


def waits_for_jobs(spec: JobSpec) -> bool:
    """Return whether the job waits for jobs that it depends on or replaces."""
    return bool(spec.depends_on) or spec.existing_job_policy == "replace"


def launch_of(
    group: TaskGroupSpec, *, exclusive: bool, network: str = "default", is_gang: bool = False
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the launch data of `group` for its cell, and the contents of its inputs by SHA-256."""
    launch: dict[str, Any] = {
        name: getattr(group, name)
        for name in _COPIED
        if name not in _STORED_IF_SET or getattr(group, name)
    }
    launch |= {
        name: [body_of(item) for item in getattr(group, name)]
        for name in _OPTIONS
        if getattr(group, name)
    }
    if is_gang:
        launch["is_gang"] = True
    launch["exclusive"] = exclusive
    launch["network"] = network
    launch["shm_mib"] = group.shm
    inputs: list[dict[str, str]] = []
    contents: dict[str, bytes] = {}
    for item in group.inputs:
        if item.from_ is not None:
            wanted = {"path": item.path, "from_group": item.from_.group}
            output = item.from_.output
            inputs.append(wanted | ({} if output is None else {"output": output}))
        elif item.content is not None:
            content = item.content.encode()
            digest = hashlib.sha256(content).hexdigest()
            contents[digest] = content
            inputs.append({"path": item.path, "sha256": digest})
        elif item.url is not None:
            source = {"path": item.path, "url": item.url}
            inputs.append(source | ({"sha256": item.sha256} if item.sha256 else {}))
    launch["inputs"] = inputs
    return launch, contents


def find_count_faults(spec: JobSpec, *, is_short: bool, max_tasks: int) -> list[Fault]:
    """Return a fault if the job has more tasks than are allowed."""
    count = spec.total_replicas()
    if count <= max_tasks:
        return []
    field = "replicas" if is_short else _field_of_replicas(spec)
    return [Fault(field, f"{count} tasks are more than the {max_tasks} that a job may have")]


def _field_of_replicas(spec: JobSpec) -> str:
    largest = max(range(len(spec.groups)), key=lambda n: spec.groups[n].replicas)
    return f"groups[{largest}].replicas"
