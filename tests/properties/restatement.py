"""The rules of states once more, written down from their text and not from the code.

Plain and slow on purpose: lists of states instead of counts, all outcomes tried instead of sums.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.transitions import Event

ACTIVE = (S.ASSIGNED, S.BUILDING, S.RUNNING)
OPEN = (S.PENDING, *ACTIVE)
BAD_ENDS = (S.FAILED, S.WORKER_FAILED, S.PREEMPTED)


# ------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Used:
    """What a task has used up; the last three count what came in a row."""

    failure: int = 0
    preemption: int = 0
    system: int = 0
    system_row: int = 0
    refusal_row: int = 0
    consecutive_crashes: int = 0


@dataclass(frozen=True)
class Course:
    """What becomes of a task and its attempt. `charge`: how much of the budget `charged`."""

    task: S
    attempt: S | None
    used: Used
    charged: str = ""
    charge: int = 0


def follow(
    state: S,
    event: Event,
    used: Used,
    limits: tuple[int, int, int],
    *,
    ran: float = 0.0,
    once: bool = False,
    rule: str = "",
) -> Course | None:
    """Return the change that the text defines; None: it defines none, so it must be refused.

    `limits`: failure, preemption, system. `once`: it is not to be tried again in any case. `rule`:
    "retry" or "fail", if a retry rule matches.
    """
    used = broken_rows(used, event, ran)
    if state is S.PENDING:
        ends = {
            Event.PLACED: S.ASSIGNED,
            Event.CACHE_HIT: S.SUCCEEDED,
            Event.DEADLINE_PASSED: S.UNSCHEDULABLE,
            Event.REJECTED: S.UNSCHEDULABLE,
            Event.KILLED: S.KILLED,
            Event.GANG_BROKEN: S.WORKER_FAILED,
        }
        if event not in ends:
            return None
        return Course(ends[event], S.ASSIGNED if event is Event.PLACED else None, used)
    if state not in ACTIVE:
        return None
    plain = {Event.EXITED_ZERO: S.SUCCEEDED, Event.KILLED: S.KILLED}
    if state is S.ASSIGNED:
        plain[Event.BUILDING] = S.BUILDING
    if state is not S.RUNNING:
        plain[Event.STARTED] = S.RUNNING
    if event in plain:
        return Course(plain[event], plain[event], used)
    if event is Event.GANG_BROKEN:
        charge = limits[1] + 1 - used.preemption
        return Course(
            S.WORKER_FAILED,
            S.WORKER_FAILED,
            replace(used, preemption=limits[1] + 1),
            "preemption",
            charge,
        )
    if event in (Event.USER_FAILED, Event.SYSTEM_FAILED) and rule:
        return _by_rule(state, event, used, limits, once, rule)
    return _try_again(state, event, used, limits, once)


def _by_rule(
    state: S, event: Event, used: Used, limits: tuple[int, int, int], once: bool, rule: str
) -> Course | None:
    """A rule that fails ends the task at once. One that retries never makes more attempts after
    failures than the failure budget has, but retries what no other budget would.
    """
    plain = _try_again(state, event, used, limits, once)
    assert plain is not None
    if rule == "fail":
        return replace(plain, task=S.FAILED)
    if plain.task is S.PENDING or once or used.failure >= limits[0]:
        return plain
    used = replace(used, failure=used.failure + 1)
    return Course(S.PENDING, S.FAILED, used, "failure", 1)


def _try_again(
    state: S, event: Event, used: Used, limits: tuple[int, int, int], once: bool
) -> Course | None:
    """Events after which the task waits again, as long as a budget lasts or without limit."""
    is_assigned = state is S.ASSIGNED
    ends: dict[Event, tuple[S, S, str]] = {
        Event.USER_FAILED: (S.FAILED, S.FAILED, "failure"),
        Event.SYSTEM_FAILED: (S.FAILED, S.FAILED, "system"),
        Event.CELL_LOST: (S.WORKER_FAILED, S.WORKER_FAILED, "preemption"),
        Event.VANISHED: (S.WORKER_FAILED, S.WORKER_FAILED, "preemption"),
        Event.PREEMPTED: (S.PREEMPTED, S.PREEMPTED, "" if is_assigned else "preemption"),
        Event.DRAINED: (S.PREEMPTED, S.PREEMPTED, ""),
        Event.GANG_REQUEUED: (S.WORKER_FAILED, S.WORKER_FAILED, ""),
        Event.HEALTH_FAILED: (S.FAILED, S.FAILED, ""),
    }
    if is_assigned:
        charged = "system" if used.refusal_row > 4 else ""
        ends[Event.REFUSED] = ends[Event.START_EXPIRED] = (S.FAILED, S.WORKER_FAILED, charged)
    if event not in ends:
        return None
    task, attempt, charged = ends[event]
    used, lasts = _charge(used, charged, limits)
    return Course(
        S.PENDING if lasts and not once else task, attempt, used, charged, 1 if charged else 0
    )


def _charge(used: Used, charged: str, limits: tuple[int, int, int]) -> tuple[Used, bool]:
    match charged:
        case "failure":
            used = replace(used, failure=used.failure + 1)
            return used, used.failure <= limits[0]
        case "preemption":
            used = replace(used, preemption=used.preemption + 1)
            return used, used.preemption <= limits[1]
        case "system":
            used = replace(used, system=used.system + 1, system_row=used.system_row + 1)
            return used, used.system_row <= limits[2]
    return used, True


def broken_rows(used: Used, event: Event, ran: float) -> Used:
    """What the event means for what came in a row.

    A minute of running shows that the system works, and so does an end by its own program; that it
    begins at all shows that it is not always refused. A service that ends within a minute has
    crashed once more.
    """
    if event in (Event.REFUSED, Event.START_EXPIRED):
        return replace(used, refusal_row=used.refusal_row + 1)
    if ran >= 60:
        used = replace(used, consecutive_crashes=0)
    if event is Event.HEALTH_FAILED:
        used = replace(used, consecutive_crashes=used.consecutive_crashes + 1)
    if ran >= 60 or event in (Event.EXITED_ZERO, Event.USER_FAILED):
        return replace(used, system_row=0, refusal_row=0)
    if event in (Event.BUILDING, Event.STARTED):
        return replace(used, refusal_row=0)
    return used


# ------------------------------------------------------------------------------- jobs


@dataclass
class Group:
    """The states of a group's tasks. `excused`: of the KILLED, those by a dependency inside."""

    states: list[S]
    minimum: int
    excused: int = 0
    is_movable: bool = True


@dataclass
class Job:
    """All that the state of a job follows from."""

    groups: list[Group] = field(default_factory=list)
    minimum: int = 0
    is_explicit: bool = False
    tolerated: int = 0
    ever_started: bool = False

    def states(self) -> list[S]:
        return [state for group in self.groups for state in group.states]


def derive(job: Job) -> S:
    """The nine rules, first that matches."""
    return next(_rules(job))


def _rules(job: Job) -> Iterator[S]:
    states = job.states()
    if all(state is S.SUCCEEDED for state in states):
        yield S.SUCCEEDED
    if states.count(S.FAILED) > job.tolerated:
        yield S.FAILED
    if S.UNSCHEDULABLE in states:
        yield S.UNSCHEDULABLE
    if states.count(S.KILLED) - sum(group.excused for group in job.groups) > 0:
        yield S.KILLED
    if not any(state in OPEN for state in states):
        each = all(group.states.count(S.SUCCEEDED) >= group.minimum for group in job.groups)
        if job.is_explicit and each and states.count(S.SUCCEEDED) >= job.minimum:
            yield S.SUCCEEDED
        if S.WORKER_FAILED in states or S.PREEMPTED in states:
            yield S.WORKER_FAILED
        only_failed = all(state in (S.SUCCEEDED, S.FAILED) for state in states)
        if not job.is_explicit and S.SUCCEEDED in states and only_failed:
            yield S.SUCCEEDED
        yield S.FAILED
    if job.ever_started or any(state in ACTIVE for state in states):
        yield S.RUNNING
    yield S.PENDING


# ------------------------------------------------------------------------------ gangs


def is_present(state: S) -> bool:
    """Whether a member in `state` holds its place, or has done its part."""
    return state in ACTIVE or state is S.SUCCEEDED


def holds(groups: Sequence[Group], minimum: int, present: Sequence[int]) -> bool:
    """Whether so many members of each group are enough."""
    each = all(count >= group.minimum for group, count in zip(groups, present, strict=True))
    return each and sum(present) >= minimum


def present_of(groups: Sequence[Group]) -> list[int]:
    """How many members of each group are present."""
    return [sum(map(is_present, group.states)) for group in groups]


def can_still_hold(groups: Sequence[Group], minimum: int) -> bool:
    """Whether any number of the waiting members, placed, is enough."""
    waiting = [range(group.states.count(S.PENDING) + 1) for group in groups]
    present = present_of(groups)
    return any(
        holds(groups, minimum, [a + b for a, b in zip(present, more, strict=True)])
        for more in product(*waiting)
    )


def judge(groups: Sequence[Group], minimum: int) -> str:
    """Return the state of a started gang by its members: "broken", "fell_below" or "holds"."""
    failed = any(state in BAD_ENDS for group in groups for state in group.states)
    if failed and not can_still_hold(groups, minimum):
        return "broken"
    movable = any(state in ACTIVE for group in groups if group.is_movable for state in group.states)
    if holds(groups, minimum, present_of(groups)) or not movable:
        return "holds"
    return "fell_below"


def fewest(groups: Sequence[Group], minimum: int) -> int | None:
    """The fewest members to be placed so that the gang holds; None: all are not enough."""
    waiting = [range(group.states.count(S.PENDING) + 1) for group in groups]
    present = present_of(groups)
    enough = [
        sum(more)
        for more in product(*waiting)
        if holds(groups, minimum, [a + b for a, b in zip(present, more, strict=True)])
    ]
    return min(enough, default=None)
