"""Forecast: the placement of a job by a pass with the job at the end of the queue; pure.

The pass is the same as in ticks, with the job's groups as further rows. Their ids are unused: those
of groups are negative, the id of the job is the largest. The shapes are real, so that equal tasks
are placed together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controlplane.contract.states import TaskState
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.cycle.pass_state import Plugins, check_all
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.prefilter import PrefilterResult
from controlplane.domain.placement.cycle.quota_usage import QuotaAccounting
from controlplane.domain.placement.model.interfaces import Request
from controlplane.domain.placement.model.snapshot import (
    GangFacts,
    PassFacts,
    PendingRows,
    PoolSnapshot,
    ShapeFacts,
)
from controlplane.domain.placement.plugins.validators.start import (
    WAITING_FOR_DEPENDENCY,
    WAITING_FOR_START_TIME,
)
from controlplane.domain.placement.reasons.explain import (
    Reason,
    explain_behind_itself,
    explain_unreached,
    explain_violations,
)
from controlplane.domain.placement.reasons.pending import PendingTaskFacts as Pending
from controlplane.domain.placement.reasons.pending import pending_reasons
from controlplane.domain.state.gangs import GangGroupFacts

JOB_ID = (1 << 62) - 1
"""Larger than the id of any job."""

# Violations that `pending` explains with more detail.
_EXPLAINED_BY_PENDING = frozenset({WAITING_FOR_DEPENDENCY, WAITING_FOR_START_TIME})


@dataclass(frozen=True, slots=True)
class CandidateGroup:
    """A group that is not submitted yet, with `tasks` of the shape. `group_id`: negative.

    `startable_at` None: a dependency is open.
    """

    group_id: int
    name: str
    tasks: int
    shape: ShapeFacts
    min_available: int
    startable_at: datetime | None
    depends_on: Sequence[Mapping[str, str]] = ()
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ForecastJob:
    """A job that is not submitted yet. `waits_for`: {"job", "name", "until"} of other jobs.

    `holds`: of its project.
    """

    groups: Sequence[CandidateGroup]
    min_available: int
    group_by: str = ""
    is_child: bool = False
    start_after: datetime | None = None
    waits_for: Sequence[Mapping[str, object]] = ()
    holds: Sequence[OpenHold] = ()


@dataclass(frozen=True, slots=True)
class GroupForecast:
    """The forecast of a group: tasks by cell, and the reason for the `waiting` others.

    `is_refused`: the others would end UNSCHEDULABLE. `also`: further reasons. `kept`: the cells on
    which room would be made for them.
    """

    name: str
    cells: Mapping[str, int]
    waiting: int
    reason: Reason | None = None
    also: Sequence[Reason] = ()
    is_refused: bool = False
    kept: Mapping[str, int] = field(default_factory=dict)


def add_shapes(waiting: Sequence[ShapeFacts], candidate: ForecastJob) -> list[ShapeFacts]:
    """Return the waiting shapes and those of the candidate, which have no reasons yet."""
    shapes = {shape.shape_id: shape for shape in waiting}
    for group in candidate.groups:
        there = shapes.get(group.shape.shape_id)
        count = group.tasks + (there.count if there is not None else 0)
        shapes[group.shape.shape_id] = replace(group.shape, count=count, reason=None)
    return [shapes[shape_id] for shape_id in sorted(shapes)]


def add_rows(
    facts: PassFacts, candidate: ForecastJob, snapshot: PoolSnapshot, screened: PrefilterResult
) -> PassFacts:
    """Return the rows of a pass, with the candidate's startable rows last in its band."""
    groups = [
        group
        for group in candidate.groups
        if _may_start(candidate, group, snapshot.now)
        and group.shape.shape_id in screened.full | screened.heads
    ]
    if not groups:
        return facts
    bands = {shape.shape_id: shape.band for shape in snapshot.shapes}
    band = groups[0].shape.band
    place = sum(bands[shape_id] <= band for shape_id in facts.waiting.shape_ids)
    count = len(groups)
    fresh = PendingRows(
        shape_ids=[group.shape.shape_id for group in groups],
        group_ids=[group.group_id for group in groups],
        job_ids=[JOB_ID] * count,
        counts=[group.tasks for group in groups],
        is_first=[False] * count,
        is_child=[candidate.is_child] * count,
        since=[group.startable_at for group in groups],
        timeout_seconds=[group.timeout_seconds for group in groups],
        avoid_cell_ids=[None] * count,
        nominated_cell_ids=[None] * count,
        prefer_cell_ids=[None] * count,
        reasons=[None] * count,
        ranks=[0] * count,
    )
    columns = {}
    for name in PendingRows.__dataclass_fields__:
        there = list(getattr(facts.waiting, name))
        columns[name] = [*there[:place], *getattr(fresh, name), *there[place:]]
    gangs = dict(facts.gangs)
    if groups[0].shape.coscheduled:
        gangs[JOB_ID] = _gang_of(candidate)
    return replace(facts, waiting=PendingRows(**columns), gangs=gangs)


def _may_start(candidate: ForecastJob, group: CandidateGroup, now: datetime) -> bool:
    if candidate.holds:
        return False
    return group.startable_at is not None and group.startable_at <= now


def _gang_of(candidate: ForecastJob) -> GangFacts:
    return GangFacts(
        group_ids=tuple(group.group_id for group in candidate.groups),
        groups=tuple(
            GangGroupFacts({TaskState.PENDING: group.tasks}, group.min_available)
            for group in candidate.groups
        ),
        min_available=candidate.min_available,
        group_by=candidate.group_by,
    )


def read_off(
    candidate: ForecastJob,
    snapshot: PoolSnapshot,
    plugins: Plugins,
    screened: PrefilterResult,
    plan: PlacementPlan,
    kept: Mapping[int, Mapping[str, int]],
) -> list[GroupForecast]:
    """Return the forecast of each group from the plan; `kept`: room made for it, by group."""
    names = {cell.cell_id: cell.name for cell in snapshot.cells}
    cells: dict[int, dict[str, int]] = {group.group_id: {} for group in candidate.groups}
    placements = plan.placements
    for group_id, cell_id, count in zip(
        placements.group_ids, placements.cell_ids, placements.counts, strict=True
    ):
        if group_id in cells:
            there = cells[group_id]
            there[names[cell_id]] = there.get(names[cell_id], 0) + count
    found, accounting = _ForecastEntry(screened, plan), QuotaAccounting(snapshot)
    forecasts = []
    for group in candidate.groups:
        placed = dict(sorted(cells[group.group_id].items()))
        waiting = group.tasks - sum(placed.values())
        one = GroupForecast(group.name, placed, waiting, kept=kept.get(group.group_id, {}))
        if waiting:
            reason = found.of(group)
            if not _may_start(candidate, group, snapshot.now):
                reason = _objections(group, snapshot, accounting, plugins) or reason
            first, *also = _reasons(candidate, group, reason, snapshot.now)
            is_refused = group.group_id in found.rejected
            one = replace(one, reason=first, also=also, is_refused=is_refused)
        forecasts.append(one)
    return forecasts


class _ForecastEntry:
    """Reasons of waiting groups by source: final rejection by a validator, gang, shape."""

    def __init__(self, screened: PrefilterResult, plan: PlacementPlan) -> None:
        self.rejected = {item.group_id: dict(item.reason) for item in plan.rejected}
        self._shapes = {item.shape_id: item.reason for item in (*screened.reasons, *plan.shapes)}
        self._groups = {item.group_id: item.reason for item in plan.groups}

    def of(self, group: CandidateGroup) -> Reason | None:
        """Return the most specific reason; None: there is none."""
        key = group.group_id
        reason = self.rejected.get(key) or self._groups.get(key)
        reason = reason or self._shapes.get(group.shape.shape_id)
        if reason is None:
            return None
        return explain_behind_itself() if reason.get("behind") == JOB_ID else dict(reason)


def _reasons(
    candidate: ForecastJob, group: CandidateGroup, found: Reason | None, now: datetime
) -> list[Reason]:
    """Return all reasons against the group's tasks, with the texts of a submitted job."""
    if _may_start(candidate, group, now):
        return [found or explain_unreached()]
    pending = Pending(
        not_before=None,
        attempt_open=False,
        startable_at=group.startable_at,
        depends_on=group.depends_on,
        found=found,
        waits_for=candidate.waits_for,
        start_after=candidate.start_after,
        holds=candidate.holds,
    )
    return pending_reasons(pending, now=now)


def _objections(
    group: CandidateGroup, snapshot: PoolSnapshot, accounting: QuotaAccounting, plugins: Plugins
) -> Reason | None:
    """Return the other violations of one task of a group that may not start yet."""
    request = Request(
        shape=group.shape,
        tasks=1,
        resources=group.shape.resources,
        quotas=accounting.quotas_of(group.shape),
        now=snapshot.now,
        startable_at=group.startable_at,
    )
    _, violations = check_all(plugins.validators, request)
    others = [item for item in violations if item.code not in _EXPLAINED_BY_PENDING]
    return explain_violations(others) if others else None
