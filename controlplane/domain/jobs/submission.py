"""Plan of a submitted job: its rows without ids, and the errors of a submission; pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.domain.cache.policy import CachePolicy
from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.errors import CellrunError, Conflict
from controlplane.domain.jobs.launch import launch_of, time_limit_of
from controlplane.domain.placement.model.concurrency import (
    ConcurrencyRule,
    StartRate,
    key_number,
)
from controlplane.domain.state.growth import NAMES, ResourceGrowth
from controlplane.domain.state.retry_rules import RetryRule
from controlplane.domain.state.states import Band, Exclusive, Reason, RetryAction
from controlplane.spec import Fault, JobSpec, TaskGroupSpec
from controlplane.spec.parts import RetryRuleSpec
from controlplane.spec.quantities import Increase

_EXCLUSIVE = {False: Exclusive.NO, True: Exclusive.LEASE, "strict": Exclusive.STRICT}


class JobsRefused(CellrunError):
    """Rejection of a submission because of faults in some jobs. `faults`: (position, fault)."""

    def __init__(self, faults: Sequence[tuple[int, Fault]]) -> None:
        super().__init__("; ".join(str(fault) for _, fault in faults))
        self.faults = tuple(faults)


class GuidTaken(Conflict):
    """A different job already has the guid of the job at `position`."""

    def __init__(self, position: int, guid: str, job_id: int | None) -> None:
        owner = "another job of the same submission" if job_id is None else f"job {job_id}"
        super().__init__(f"guid {guid} belongs to {owner}, which was submitted differently")
        self.position = position


class TaskGuidTaken(Conflict):
    """Another one-off task or a job (`holder`) already has the guid."""

    def __init__(self, guid: str, holder: str | None) -> None:
        super().__init__(f"guid {guid} belongs to {holder or 'another task'} already")


class NameTaken(Conflict):
    """The unfinished job `job_id` has the name of the job at `position`."""

    def __init__(self, position: int, name: str, job_id: int) -> None:
        super().__init__(
            f"job {job_id}, which is named {name}, has not ended (existing_job_policy: error)"
        )
        self.position = position


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group row without ids. `contents`: of the inputs in `launch`, by SHA-256.

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
    cache: CachePolicy | None = None
    retry_rules: Sequence[RetryRule] = ()


@dataclass(slots=True, eq=False)
class PlannedJob:
    """A job and its groups, ready to be inserted; the insertion sets `job_id`.

    `position`: in its submission. `is_short`: it was submitted with the fields of one group at the
    top. `text`, `digest`: of its document.
    """

    position: int
    spec: JobSpec
    is_short: bool
    text: str
    digest: str
    project_id: int
    pool_id: int
    owner_id: int
    min_available: int
    max_task_failures: int
    groups: Sequence[PlannedGroup]
    retry_of: int | None = None
    is_one_off: bool = False
    job_id: int = 0

    def contents(self) -> dict[str, bytes]:
        """Return the distinct contents of the job's inputs, by SHA-256."""
        return {key: it for group in self.groups for key, it in group.contents.items()}


# Shared, because `json.dumps` with separators creates an encoder for each call. Not orjson: stored
# digests must stay those of this text.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the body as canonical JSON text, and the SHA-256 digest of that text."""
    text = _CANONICAL.encode(body)
    return text, hashlib.sha256(text.encode()).hexdigest()


def band_of(spec: JobSpec) -> Band:
    """Return the band of a job."""
    return Band[spec.band.upper()]


def plan_groups(
    spec: JobSpec,
    *,
    now: datetime,
    changes: Sequence[Mapping[str, Any]] = (),
    default_disk_mib: int = 0,
) -> list[PlannedGroup]:
    """Return the groups of a job submitted at `now`. `changes`: fields that its kind set, by group.

    `default_disk_mib`: the limit of its pool for groups that request no disk.
    A group that waits for other groups or jobs is not startable yet, and has no deadline.
    """
    planned = [
        _plan_group(spec, group, position, minimum, now, default_disk_mib)
        for position, (group, minimum) in enumerate(zip(spec.groups, spec.minima(), strict=True))
    ]
    if not any(changes):
        return planned
    return [
        replace(group, prepared=prepared) for group, prepared in zip(planned, changes, strict=True)
    ]


def _plan_group(
    spec: JobSpec,
    group: TaskGroupSpec,
    position: int,
    minimum: int,
    now: datetime,
    default_disk_mib: int,
) -> PlannedGroup:
    depends_on = [{"group": d.group, "until": d.until} for d in group.dependencies()]
    waits = bool(depends_on) or waits_for_jobs(spec)
    startable_at = None if waits else max(now, spec.start_after or now)
    deadline_at = None
    if startable_at is not None and spec.scheduling_timeout_seconds is not None:
        deadline_at = startable_at + timedelta(seconds=spec.scheduling_timeout_seconds)
    retries = spec.retries_of(group)
    launch, contents = launch_of(
        group,
        exclusive=bool(spec.exclusive_of(group)),
        network=spec.network_of(group),
        is_gang=spec.coscheduled,
        default_disk_mib=default_disk_mib,
    )
    time_limit, is_lifetime = time_limit_of(group)
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
        retry_rules=tuple(map(rule_of, group.on_exit)),
        at_most_once=spec.runs_at_most_once(group),
        exclusive=_EXCLUSIVE[spec.exclusive_of(group)],
        timeout_seconds=time_limit,
        timeout_is_lifetime=is_lifetime,
        startable_at=startable_at,
        deadline_at=deadline_at,
        cache=CachePolicy.of(spec.cache_of(group)),
    )


def constraints_of(spec: JobSpec, group: TaskGroupSpec) -> tuple[Constraint, ...]:
    """Return the label constraints of the group for placement."""
    return tuple(
        Constraint(item.key, Operator(item.op), tuple(item.values), item.required)
        for item in spec.constraints_of(group)
    )


def rule_of(item: RetryRuleSpec) -> RetryRule:
    """Return a submitted retry rule for decisions."""
    reason = None if item.reason is None else Reason(item.reason)
    return RetryRule(RetryAction(item.do), frozenset(item.codes or ()), reason, growth_of(item))


def growth_of(item: RetryRuleSpec) -> tuple[ResourceGrowth, ...]:
    """Return how a submitted retry rule increases resources."""
    found = []
    for name, stored in NAMES.items():
        increase: Increase | None = getattr(item.resources, name, None)
        if increase is not None:
            most: int | None = getattr(item.max_resources, name, None)
            amount = increase.amount or 0
            found.append(ResourceGrowth(stored, increase.percent, amount, most))
    return tuple(found)


def concurrency_of(spec: JobSpec, project_id: int) -> ConcurrencyRule | None:
    """Return the rule of the job's concurrency key, whose scope is the project."""
    item = spec.concurrency
    if item is None:
        return None
    starts = None if item.starts is None else StartRate(item.starts.count, item.starts.per_seconds)
    return ConcurrencyRule(key_number(project_id, item.key), item.key, item.limit, starts)


def waits_for_jobs(spec: JobSpec) -> bool:
    """Return whether the job waits for jobs that it depends on or replaces."""
    return bool(spec.depends_on) or spec.existing_job_policy == "replace"
