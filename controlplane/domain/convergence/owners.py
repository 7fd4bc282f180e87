"""Owners: the component that ends each situation of a task or another row.

The owner of a task is the first row whose condition holds; docs/states.md shows the table. The rule
of a bounded row ends the situation after a time; other situations are checked repeatedly by their
actor. Only PENDING, held or without a deadline, may last indefinitely without a fault; `manage.py
doctor` lists such tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence import task_rules
from controlplane.domain.convergence.task_rules import TaskRule
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import ACTIVE, OPEN, TERMINAL, Exclusive


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """A task and the facts that determine its owner.

    `is_cell_lost`: the cell of its attempt, or the attempt's incarnation of the cell, is lost.
    """

    facts: TaskFacts
    is_cell_lost: bool = False
    is_job_ending: bool = False
    is_job_requeuing: bool = False
    waits_for_jobs: bool = False
    is_group_startable: bool = True
    has_deadline: bool = False
    has_timeout: bool = False
    is_held: bool = False

    @property
    def attempt(self) -> S | None:
        """Return the state of the unreleased attempt, or None if there is none."""
        attempt = self.facts.attempt
        return attempt.state if attempt is not None and attempt.released_at is None else None


@dataclass(frozen=True, slots=True)
class Owner:
    """One row: in the situation `what`, `actor` acts within `longest`; `then` is the result.

    `number`, `rule`: the convergence rule and its source of work, if any. `by`: the components that
    act, with {rule} for the rule. `is_bounded`: the situation ends with time, without any cell or
    operator. `holds`: the condition, for tasks.
    """

    what: str
    then: str
    number: int = 0
    rule: str = ""
    longest: str = "checked in each tick"
    by: str = "{rule}"
    is_bounded: bool = True
    holds: Callable[[OwnerFacts], bool] | None = None

    @property
    def actor(self) -> str:
        """Return the components that act, with the name of the rule."""
        return self.by.format(rule=f"convergence, rule {self.number}")


def _of_rule(rule: TaskRule, holds: Callable[[OwnerFacts], bool], *, by: str = "{rule}") -> Owner:
    return Owner(rule.what, rule.then, rule.number, rule.name, rule.longest, by, holds=holds)


def _is_stopping(task: OwnerFacts) -> bool:
    return task.attempt in TERMINAL


def _is_stop_forced(task: OwnerFacts) -> bool:
    attempt = task.facts.attempt
    return attempt is not None and attempt.is_stop_forced


def _is_held_strictly(task: OwnerFacts) -> bool:
    is_strict = task.facts.exclusive is Exclusive.STRICT
    return task.is_cell_lost and _is_stopping(task) and is_strict


_BEAT = "checked with each heartbeat"

TASK_OWNERS: tuple[Owner, ...] = (
    Owner(
        "open, and its job is ending",
        "KILLED, or WORKER_FAILED with its gang",
        8,
        "ending_jobs",
        holds=lambda task: task.is_job_ending and task.facts.state in OPEN,
    ),
    Owner(
        "strictly exclusive, its attempt ended, its cell lost",
        "released, then as any other task",
        rule="held_attempts",
        longest="no limit: only these can confirm that its container is gone",
        by="its cell, if it returns, or an operator; an alert is open",
        is_bounded=False,
        holds=_is_held_strictly,
    ),
    _of_rule(
        task_rules.ATTEMPTS_OF_LOST_CELLS,
        lambda task: task.is_cell_lost and task.attempt is not None,
    ),
    _of_rule(
        task_rules.UNCONFIRMED_STOPS,
        lambda task: _is_stopping(task) and not _is_stop_forced(task),
        by="Sync, which repeats the stop with each heartbeat; {rule}",
    ),
    Owner(
        "its attempt ended, its stop forced, its container not confirmed gone",
        "released by its cell, the loss of its cell, or an operator",
        6,
        "stuck_stops",
        "stop grace + 60 s, at least 30 s after it was forced; then its cell is QUARANTINED and an"
        " alert raised",
        "Sync, which repeats the forced stop with each heartbeat; {rule}",
        is_bounded=False,
        holds=_is_stopping,
    ),
    Owner(
        "active, and its gang is being requeued",
        "PENDING, free",
        8,
        "requeuing_jobs",
        holds=lambda task: (
            task.is_job_requeuing and task.attempt in ACTIVE and not task.facts.at_most_once
        ),
    ),
    _of_rule(
        task_rules.UNANSWERED,
        lambda task: task.attempt is S.ASSIGNED and not task.facts.at_most_once,
    ),
    Owner(
        "ASSIGNED, at most once",
        "as its cell reports",
        rule="silent_leases",
        longest=_BEAT,
        by="its cell, which refuses after `start_before`; if it is silent, rule 1",
        is_bounded=False,
        holds=lambda task: task.attempt is S.ASSIGNED,
    ),
    _of_rule(task_rules.STUCK_BUILDS, lambda task: task.attempt is S.BUILDING),
    _of_rule(
        task_rules.OVERRUNS,
        lambda task: task.attempt is S.RUNNING and task.has_timeout,
        by="its cell; {rule}",
    ),
    Owner(
        "RUNNING, without a timeout",
        "as its program ends",
        rule="silent_leases",
        longest=_BEAT,
        by="its program; if its cell is silent, rule 1",
        is_bounded=False,
        holds=lambda task: task.attempt is S.RUNNING,
    ),
    Owner(
        "PENDING, its job or project held",
        "may be placed again",
        longest="no limit: until the hold is released",
        by="its holder, or an operator (`cellrun release`)",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING and task.is_held,
    ),
    Owner(
        "PENDING, its job waits for other jobs",
        "may start, or is KILLED with its job",
        7,
        "blocked_jobs",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING and task.waits_for_jobs,
    ),
    Owner(
        "PENDING, its group waits for other groups",
        "may start, or is KILLED",
        7,
        "waiting_jobs",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING and not task.is_group_startable,
    ),
    _of_rule(
        task_rules.UNPLACED,
        lambda task: task.facts.state is S.PENDING and task.has_deadline,
        by="placement; {rule}",
    ),
    Owner(
        "PENDING, without a deadline or started before",
        "ASSIGNED",
        rule="placement",
        longest="no limit: checked in each pass (after a back-off of at most 5 min)",
        by="placement",
        is_bounded=False,
        holds=lambda task: task.facts.state is S.PENDING,
    ),
)
"""The first row that holds applies. If none holds, the task is terminal and released."""

OTHER_OWNERS: tuple[Owner, ...] = (
    Owner("a job with a parent that has ended", "ends KILLED", 8, "orphaned_jobs"),
    Owner(
        "a job that has ended, its attempts released",
        "settled",
        rule="unsettled_jobs",
        by="the release of its last attempt; convergence",
    ),
    Owner(
        "a count, a flag or a state that differs from its derived value",
        "repaired, and an alert raised; if it cannot be repaired, only the alert",
        12,
        "recount",
        "checked page by page: 200 jobs in each 10th tick, if they are open or ended in the last"
        " day",
        is_bounded=False,
    ),
    Owner(
        "a total of stored bytes that differs from the counted sizes",
        "repaired, and an alert raised",
        12,
        "stored_totals",
        "checked every 30 minutes, at most 100 projects repaired each time",
        is_bounded=False,
    ),
    Owner(
        "a row without its job or task",
        "deleted, and an alert raised",
        12,
        "orphans",
        "checked page by page: 20,000 rows in each 10th tick",
        is_bounded=False,
    ),
    Owner(
        "an alert about a strictly exclusive attempt that is released",
        "cleared",
        rule="freed_attempts",
        by="convergence",
    ),
    Owner(
        "an image that cells could not pull",
        "forgotten once an attempt with it runs, or an hour after the last failure",
        rule="images",
        longest="its tasks wait 1 to 10 min after the last failure on three cells",
        by="convergence",
    ),
    Owner(
        "a task that uses the cache and may start",
        "a hit, or it waits for an identical task, or it may be placed",
        9,
        "cache_lookups",
    ),
    Owner(
        "a task that waits for an identical one, which does not run",
        "looked up again if the result is stored; else the first one may be placed",
        9,
        "cache_waiters",
    ),
    Owner("a succeeded task that uses the cache", "its result is stored", 9, "cache_stores"),
    Owner(
        "a cache entry without hits, and an evicted one to which no task refers",
        "evicted, and deleted",
        11,
        "old_entries",
        "`CELLRUN_CACHE_DAYS`",
    ),
    Owner(
        "cache entries above the maximum size",
        "those without a use for the longest time are evicted",
        11,
        "cache_size",
        "checked in each 10th tick",
        is_bounded=False,
    ),
    Owner(
        "a one-off task that is RESOLVING",
        "COMPLETED again",
        10,
        "resolving",
        "30 s",
        "the client that claimed it; {rule}",
    ),
    Owner(
        "a callback that a worker is trying to deliver",
        "tried again",
        10,
        "claimed_callbacks",
        "30 s",
        "the worker that claimed it; {rule}",
    ),
    Owner(
        "an exec session that no cell has claimed, whose client or cell is away, or whose attempt"
        " is released",
        "ENDED, with the reason",
        10,
        "stale_sessions",
        "30 s; a released attempt: checked in each tick",
        "web, while client or cell is connected; {rule}",
    ),
    Owner(
        "an alert about an action that is retried",
        "closed",
        12,
        "quiet_alerts",
        "10 min after it was last raised; about a repair: a day",
    ),
    Owner(
        "a settled job, or a one-off task that has ended",
        "deleted",
        11,
        "expired_jobs",
        "its `ttl_seconds_after_finished`; a one-off task 120 s; longer while a row refers to it",
    ),
    Owner(
        "an audit entry, a tick run or sample of a pool, a dead letter, a closed alert, an ended"
        " bulk operation, a total of usage",
        "deleted",
        11,
        "old_records",
        "`CELLRUN_AUDIT_DAYS`, a day, 30 days, 30 days, 30 days, `CELLRUN_USAGE_MONTHS`",
    ),
    Owner(
        "a size of stored files that the total of its project lacks",
        "added to the total",
        11,
        "uncounted_sizes",
    ),
    Owner(
        "a settled job that the totals of usage lack",
        "counted",
        11,
        "uncounted_usage",
    ),
    Owner(
        "a file of an attempt without a row",
        "deleted",
        11,
        "orphan_files",
        "checked once a day, for a part of a second in each 10th tick, when it is a day old",
        is_bounded=False,
    ),
    Owner(
        "a rotation of the key of a cell that has not used its next key",
        "the next key is discarded, the present one stays valid",
        11,
        "key_rotations",
        "a day, or as ordered with `enroll_cell --within-hours`",
        "the cell, with its first message under the next key; {rule}",
    ),
    Owner(
        "a pool without a current sample of its figures",
        "sampled",
        13,
        "samples",
        "checked every 15 s",
        is_bounded=False,
    ),
    Owner(
        "a bulk operation that is running",
        "done, or stopped once its token or user is not valid any more",
        14,
        "bulk_operations",
        "the next jobs in each tick, for 2 s",
    ),
    Owner(
        "a schedule with a due instant",
        "its job is submitted, or the instant is recorded as waiting, skipped, missed or refused",
        15,
        "due_schedules",
    ),
    Owner(
        "an instant that waits in the queue of its schedule, whose jobs have finished",
        "its job is submitted, or the instant is recorded as refused",
        15,
        "ready_firings",
    ),
    Owner("a deleted job, settled", "deleted", 11, "deleted_jobs"),
    Owner(
        "a cell that is silent",
        "LOST",
        1,
        "silent_leases",
        "its lease, 37.5 s, and 3 ticks that could have received its heartbeats",
    ),
    Owner(
        "a pool of which more than half of the cells, at least 3, became silent at once",
        "its silent cells have one more lease; confirmed, or `proceed`: LOST",
        1,
        "held_losses",
        "no limit: until they send heartbeats or an operator confirms; `proceed`: one more lease",
        "{rule}; an operator, if its `mass_loss` is `hold`",
        is_bounded=False,
    ),
    Owner(
        "a READY cell on which all attempts fail",
        "QUARANTINED for 10 min, and an alert raised",
        6,
        "failing_cells",
        "checked in each tick: 10 consecutive system failures, of 3 jobs and 3 images",
        is_bounded=False,
    ),
    Owner(
        "a QUARANTINED cell",
        "the ordered state, once its stops are confirmed, its time has passed, or it is healthy",
        6,
        "cleared_cells",
        by="{rule}; if it reported itself unhealthy, its heartbeats",
        is_bounded=False,
    ),
    Owner(
        task_rules.DRAINED.what,
        task_rules.DRAINED.then,
        rule=task_rules.DRAINED.name,
        longest=task_rules.DRAINED.longest,
        by=f"its program; convergence, with rule {task_rules.DRAINED.number}",
        is_bounded=False,
    ),
    Owner(
        "a LOST cell",
        "READY, in a new incarnation",
        longest="no limit: no task waits for it",
        by="an operator: start the cell",
        is_bounded=False,
    ),
    Owner(
        "a CORDONED or DRAINING cell",
        "READY, by the operator's order",
        longest="no limit",
        by="an operator",
        is_bounded=False,
    ),
)


def find_owner(task: OwnerFacts) -> Owner | None:
    """Return the owner of the task, or None if it is terminal and released."""
    return next((owner for owner in TASK_OWNERS if owner.holds and owner.holds(task)), None)
