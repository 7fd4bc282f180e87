"""Owners: each state that is not final has a component that moves it on.

The first row that holds for a task is its owner; docs/states.md shows the table. A row with a bound
is ended by its rule when the clock advances; any other is checked again by the component in
`owner`. Only PENDING without a deadline may last indefinitely without a fault: `manage.py doctor`
lists it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import ACTIVE, OPEN, TERMINAL, Exclusive


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """A task and the facts that determine its owner.

    `is_cell_lost`: the cell of its attempt is lost, or that incarnation of it.
    """

    facts: TaskFacts
    is_cell_lost: bool = False
    is_job_ending: bool = False
    is_job_bouncing: bool = False
    waits_for_jobs: bool = False
    is_group_startable: bool = True
    has_deadline: bool = False
    has_timeout: bool = False

    @property
    def attempt(self) -> S | None:
        """Return the state of the attempt that holds the task; None if none does."""
        attempt = self.facts.attempt
        return attempt.state if attempt is not None and attempt.released_at is None else None


@dataclass(frozen=True, slots=True)
class Owner:
    """One row: while `what` holds, `who` acts within `longest`; the result is `then`.

    `rule`: the name of the convergence rule, if there is one. `is_bounded`: it ends as the clock
    advances, without any cell or operator. `holds`: the condition for tasks.
    """

    what: str
    who: str
    longest: str
    then: str
    rule: str = ""
    is_bounded: bool = True
    holds: Callable[[OwnerFacts], bool] | None = None


def _is_stopping(task: OwnerFacts) -> bool:
    return task.attempt in TERMINAL


def _is_stop_forced(task: OwnerFacts) -> bool:
    attempt = task.facts.attempt
    return attempt is not None and attempt.is_stop_forced


def _is_held_strictly(task: OwnerFacts) -> bool:
    is_strict = task.facts.exclusive is Exclusive.STRICT
    return task.is_cell_lost and _is_stopping(task) and is_strict


_TICK = "checked in each tick"
_PASS = "checked in each pass"
_BEAT = "checked with each heartbeat"

TASK_OWNERS: tuple[Owner, ...] = (
    Owner(
        "open, and its job is ending",
        "convergence, rule 8",
        _TICK,
        "KILLED, or WORKER_FAILED with its gang",
        rule="ending_jobs",
        holds=lambda task: task.is_job_ending and task.facts.state in OPEN,
    ),
    Owner(
        "strictly exclusive, its attempt ended, its cell lost",
        "its cell, if it returns, or an operator; an alert is open",
        "declared: only these can confirm that its container is gone",
        "released, then as any other task",
        rule="held_attempts",
        is_bounded=False,
        holds=_is_held_strictly,
    ),
    Owner(
        "an attempt on a lost cell",
        "convergence, rule 1",
        f"{_TICK}; exclusive: until its guard has ended it, 10 s",
        "PENDING on the preemption budget, or WORKER_FAILED; released",
        rule="attempts_of_lost_cells",
        holds=lambda task: task.is_cell_lost and task.attempt is not None,
    ),
    Owner(
        "its attempt ended, its container not confirmed gone",
        "Sync, which repeats the stop with each heartbeat; convergence, rule 6",
        "stop grace + 30 s",
        "its stop is forced: the cell kills the container at once",
        rule="unconfirmed_stops",
        holds=lambda task: _is_stopping(task) and not _is_stop_forced(task),
    ),
    Owner(
        "its attempt ended, its stop forced, its container not confirmed gone",
        "Sync, which repeats the forced stop with each heartbeat; convergence, rule 6",
        "stop grace + 60 s, at least 30 s after it was forced; then its cell is QUARANTINED and an"
        " alert raised",
        "released by its cell, the loss of its cell, or an operator",
        rule="stuck_stops",
        is_bounded=False,
        holds=_is_stopping,
    ),
    Owner(
        "active, and its gang is being requeued",
        "convergence, rule 8",
        _TICK,
        "PENDING, free",
        rule="bouncing_jobs",
        holds=lambda task: (
            task.is_job_bouncing and task.attempt in ACTIVE and not task.facts.at_most_once
        ),
    ),
    Owner(
        "ASSIGNED",
        "convergence, rule 2",
        "`start_before`, 60 s",
        "PENDING, free, its attempt stopped; from the fifth consecutive time: the system budget",
        rule="unanswered",
        holds=lambda task: task.attempt is S.ASSIGNED and not task.facts.at_most_once,
    ),
    Owner(
        "ASSIGNED, at most once",
        "its cell, which refuses after `start_before`; if it is silent, rule 1",
        _BEAT,
        "as its cell reports",
        rule="silent_leases",
        is_bounded=False,
        holds=lambda task: task.attempt is S.ASSIGNED,
    ),
    Owner(
        "BUILDING",
        "convergence, rule 3",
        "pulling: the pool's timeout to pull; creating and checking: to create, for checking with"
        " the start period of the service; preparing: no limit of its own;"
        " in all phases together their sum, from `start_before` on",
        "PENDING on the system budget, elsewhere, or FAILED",
        rule="stuck_builds",
        holds=lambda task: task.attempt is S.BUILDING,
    ),
    Owner(
        "RUNNING, with a timeout",
        "its cell; convergence, rule 4",
        "`timeout_seconds` or `lifetime_seconds`, the shorter, and 30 s for the cell to end it",
        "KILLED",
        rule="overruns",
        holds=lambda task: task.attempt is S.RUNNING and task.has_timeout,
    ),
    Owner(
        "RUNNING, without a timeout",
        "its program; if its cell is silent, rule 1",
        _BEAT,
        "as its program ends",
        rule="silent_leases",
        is_bounded=False,
        holds=lambda task: task.attempt is S.RUNNING,
    ),
    Owner(
        "PENDING, its job waits for other jobs",
        "convergence, rule 7",
        _TICK,
        "may start, or is KILLED with its job",
        rule="blocked_jobs",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING and task.waits_for_jobs,
    ),
    Owner(
        "PENDING, its group waits for other groups",
        "convergence, rule 7",
        _TICK,
        "may start, or is KILLED",
        rule="waiting_jobs",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING and not task.is_group_startable,
    ),
    Owner(
        "PENDING, never started, with a deadline",
        "placement; convergence, rule 5",
        "`scheduling_timeout_seconds`, and a pass that has considered it since",
        "UNSCHEDULABLE",
        rule="unplaced",
        holds=lambda task: task.facts.state is S.PENDING and task.has_deadline,
    ),
    Owner(
        "PENDING, without a deadline or started before",
        "placement",
        f"declared: {_PASS} (backing off: after 5 min at most)",
        "ASSIGNED",
        rule="placement",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING,
    ),
)
"""In order: the first that holds applies. Without one, the task is terminal and released."""

OTHER_OWNERS: tuple[Owner, ...] = (
    Owner(
        "a job with a parent that has ended",
        "convergence, rule 8",
        _TICK,
        "ends KILLED",
        rule="orphaned_jobs",
    ),
    Owner(
        "a job that has ended, its attempts released",
        "the release of its last attempt; convergence",
        _TICK,
        "settled",
        rule="unsettled_jobs",
    ),
    Owner(
        "a count, a flag or a state that differs from its derived value",
        "convergence, rule 12",
        "checked page by page: 200 jobs in each 10th tick, if they are open or ended in the last"
        " day",
        "repaired, and an alert raised; if it cannot be repaired, only the alert",
        rule="recount",
        is_bounded=False,
    ),
    Owner(
        "a row without its job or task",
        "convergence, rule 12",
        "checked page by page: 20,000 rows in each 10th tick",
        "deleted, and an alert raised",
        rule="orphans",
        is_bounded=False,
    ),
    Owner(
        "an alert about a strictly exclusive attempt that is released",
        "convergence",
        _TICK,
        "cleared",
        rule="freed_attempts",
    ),
    Owner(
        "an image that cells could not pull",
        "convergence",
        "its tasks wait 1 to 10 min after the last failure on three cells",
        "forgotten once an attempt with it runs, or an hour after the last failure",
        rule="images",
    ),
    Owner(
        "a one-off task that is RESOLVING",
        "the client that claimed it; convergence, rule 10",
        "30 s",
        "COMPLETED again",
        rule="resolving",
    ),
    Owner(
        "a callback that a worker is trying to deliver",
        "the worker that claimed it; convergence, rule 10",
        "30 s",
        "tried again",
        rule="claimed_callbacks",
    ),
    Owner(
        "an alert about an action that is retried",
        "convergence, rule 12",
        "10 min after it was last raised; about a repair: a day",
        "closed",
        rule="quiet_alerts",
    ),
    Owner(
        "a settled job, or a one-off task that has ended",
        "convergence, rule 11",
        "its `ttl_seconds_after_finished`; a one-off task 120 s; longer while a row refers to it",
        "deleted",
        rule="expired_jobs",
    ),
    Owner(
        "an audit entry, a tick run, a dead letter, a closed alert",
        "convergence, rule 11",
        "`CELLRUN_AUDIT_DAYS`, a day, 30 days, 30 days",
        "deleted",
        rule="old_records",
    ),
    Owner(
        "a file of an attempt without a row",
        "convergence, rule 11",
        "checked once a day, for a part of a second in each 10th tick, when it is a day old",
        "deleted",
        rule="strays",
        is_bounded=False,
    ),
    Owner("a deleted job, settled", "convergence, rule 11", _TICK, "deleted", rule="deleted_jobs"),
    Owner(
        "a cell that is silent",
        "convergence, rule 1",
        "its lease, 37.5 s, and 3 ticks that could have received its heartbeats",
        "LOST",
        rule="silent_leases",
    ),
    Owner(
        "a pool of which more than half of the cells, at least 3, became silent at once",
        "convergence, rule 1; an operator, if its `mass_loss` is `hold`",
        "declared: until they send heartbeats or an operator confirms; `proceed`: one more lease",
        "its silent cells have one more lease; confirmed, or `proceed`: LOST",
        rule="held_losses",
        is_bounded=False,
    ),
    Owner(
        "a READY cell on which all attempts fail",
        "convergence, rule 6",
        "checked in each tick: 10 consecutive system failures, of 3 jobs and 3 images",
        "QUARANTINED for 10 min, and an alert raised",
        rule="failing_cells",
        is_bounded=False,
    ),
    Owner(
        "a QUARANTINED cell",
        "convergence, rule 6; if it reported itself unhealthy, its heartbeats",
        _TICK,
        "the ordered state, once its stops are confirmed, its time has passed, or it is healthy",
        rule="cleared_cells",
        is_bounded=False,
    ),
    Owner(
        "an attempt on a DRAINING cell",
        "its program; convergence, with rule 5",
        "checked in each tick: until the deadline of the drain, 1 h by default",
        "evicted, without charge",
        rule="drained",
        is_bounded=False,
    ),
    Owner(
        "a LOST cell",
        "an operator: start the cell",
        "declared: no task waits for it",
        "READY, in a new incarnation",
        is_bounded=False,
    ),
    Owner(
        "a CORDONED or DRAINING cell",
        "an operator",
        "declared",
        "READY, by the operator's order",
        is_bounded=False,
    ),
)


def find_owner(task: OwnerFacts) -> Owner | None:
    """Return the owner of the task; None: it is terminal and released."""
    return next((owner for owner in TASK_OWNERS if owner.holds and owner.holds(task)), None)
