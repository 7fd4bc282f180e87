"""Generate docs/states.md: every state, legal transition and budget, from the domain's tables."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.owners import OTHER_OWNERS, TASK_OWNERS, Owner
from controlplane.domain.state import backoff
from controlplane.domain.state.states import (
    ACTIVE,
    ATTEMPT_STATES,
    COLOURS,
    JOB_STATES,
    REASONS,
    TERMINAL,
    CellState,
    Reason,
    ReleaseKind,
    failure_reason_of,
)
from controlplane.domain.state.transitions import (
    FREE_REFUSALS,
    HEALTHY_RUN_SECONDS,
    TRANSITIONS,
    BackoffKind,
    Event,
    RetryLimits,
    TransitionRule,
)
from docgen.rollup_rules import RULES
from docgen.states_picture import is_charged_later, targets
from docgen.tables import table

ORDER = (
    S.PENDING,
    S.ASSIGNED,
    S.BUILDING,
    S.RUNNING,
    S.SUCCEEDED,
    S.FAILED,
    S.KILLED,
    S.WORKER_FAILED,
    S.UNSCHEDULABLE,
    S.PREEMPTED,
)

MEANINGS: Mapping[S, str] = MappingProxyType(
    {
        S.PENDING: "waits to be placed, with a reason",
        S.ASSIGNED: "assigned to a cell that has not accepted it yet",
        S.BUILDING: "accepted by its cell: waiting, inputs, image, creation, first health check",
        S.RUNNING: "its program runs",
        S.SUCCEEDED: "its program ended with exit status 0",
        S.FAILED: "its program failed, or it had too many system failures",
        S.KILLED: "ended deliberately: cancelled, timed out, or with its job",
        S.WORKER_FAILED: "its cell was lost, or its container vanished, too often",
        S.UNSCHEDULABLE: "not placed before its scheduling deadline, or never placeable",
        S.PREEMPTED: "preempted by higher bands too often",
    }
)

EVENTS: Mapping[Event, str] = MappingProxyType(
    {
        Event.PLACED: "placement assigns it to a cell",
        Event.CACHE_HIT: "its result is in the cache",
        Event.DEADLINE_PASSED: "its scheduling deadline passes",
        Event.REJECTED: "it can never be placed",
        Event.BUILDING: "its cell reports BUILDING",
        Event.STARTED: "its cell reports RUNNING",
        Event.EXITED_ZERO: "exit status 0",
        Event.USER_FAILED: "non-zero exit, out of memory, bad image or input",
        Event.SYSTEM_FAILED: "failure of engine, registry or disk; a build over its time limit",
        Event.REFUSED: "its cell refuses it",
        Event.START_EXPIRED: "its cell did not accept it before `start_before`",
        Event.CELL_LOST: "its cell is lost",
        Event.VANISHED: "its container vanished, or was stopped from outside",
        Event.PREEMPTED: "work of a higher band preempts it",
        Event.DRAINED: "its cell drains or evacuates",
        Event.KILLED: "cancelled, timed out, idle, lifetime over, its job or a dependency ended",
        Event.HEALTH_FAILED: "kind `inference`: it was RUNNING, and its health check failed, or its"
        " program ended",
        Event.GANG_BROKEN: "a member of its gang failed finally",
        Event.GANG_REQUEUED: "its gang fell below its minimum",
    }
)

CELLS: Mapping[CellState, str] = MappingProxyType(
    {
        CellState.READY: "takes work",
        CellState.CORDONED: "takes no new work; running work continues",
        CellState.DRAINING: "takes no new work; its attempts finish or are evicted",
        CellState.QUARANTINED: "takes no new work: it does not confirm stops, fails all attempts,"
        " or reports that it is unfit",
        CellState.LOST: "silent beyond its lease; its attempts were released",
    }
)

RELEASES: Mapping[ReleaseKind, str] = MappingProxyType(
    {
        ReleaseKind.CONFIRMED: "its cell: the container is gone and will not start",
        ReleaseKind.CELL_LOST: "the control plane: the cell is lost; the container may still run",
        ReleaseKind.OPERATOR: "an operator, by hand",
    }
)

_ON_OTHER_PAGES = (11, 12)
"""Numbers of the rules whose time limits and results another page describes."""


def write() -> str:
    """Return the whole page."""
    return "\n\n".join([*_head(), *_changes(), *_budgets(), *_others()]) + "\n"


def _head() -> list[str]:
    states = table(
        ("state", "number", "kind", "of jobs", "of attempts", "colour", "meaning"),
        (
            (
                f"**{state.name}**",
                str(state.value),
                _kind(state),
                _mark(state in JOB_STATES),
                _mark(state in ATTEMPT_STATES),
                f"`{COLOURS[state]}`",
                MEANINGS[state],
            )
            for state in ORDER
        ),
    )
    return [
        "# States\n\n<!-- Written by `make docs` from controlplane/domain; do not edit. -->",
        "Tasks, attempts and jobs have one of ten states. A state changes only according to the"
        " [table](#changes)\n(`controlplane/domain/state/transitions.py`). A terminal state is"
        " final. Numbers and names are those of Iris.",
        states,
        "![The life of a task](images/states.svg)",
    ]


def _kind(state: S) -> str:
    return "terminal" if state in TERMINAL else "active" if state in ACTIVE else "waiting"


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


def _changes() -> list[str]:
    rows = []
    for event in Event:
        for rule, states in _by_rule(event):
            rows.append(
                (
                    _states(states),
                    EVENTS[event],
                    ", ".join(state.name for state in targets(rule)),
                    rule.attempt.name if rule.attempt else "",
                    _pays(rule),
                    _waits(rule),
                )
            )
    return [
        "## Changes",
        "Where a task becomes one of two states: PENDING while the budget lasts, then the other."
        " *Free*: charged to no budget.",
        table(("from", "event", "task becomes", "attempt becomes", "budget", "then"), rows),
        "The [retry rules](job-spec.md#retry-rules) of the group may decide on failures of the task"
        " and of the system: FAILED at\nonce, or PENDING also after a permanent failure, and from"
        " the failure budget when the system budget is used up.",
        "An *at most once* task does not become PENDING when its attempt ends, regardless of its"
        " budgets, unless its cell reports\nthat its container was never created. Its order does"
        " not expire.",
        "When the control plane ends an attempt, the attempt holds its capacity and its task until"
        " its release. Only then the task\ncan be placed again.",
        table(
            ("release", "released by"),
            ((f"`{kind.value}`", RELEASES[kind]) for kind in ReleaseKind),
        ),
    ]


def _by_rule(event: Event) -> list[tuple[TransitionRule, list[S]]]:
    found: dict[TransitionRule, list[S]] = defaultdict(list)
    for state in ORDER:
        if rule := TRANSITIONS.get((state, event)):
            found[rule].append(state)
    return list(found.items())


def _states(states: list[S]) -> str:
    return "active" if set(states) == ACTIVE else ", ".join(state.name for state in states)


def _pays(rule: TransitionRule) -> str:
    if rule.exhausts and rule.budget:
        return f"{rule.budget.value}: the whole remaining budget and 1 more"
    if is_charged_later(rule):
        return f"free; from the {FREE_REFUSALS + 1}th consecutive time: system"
    return rule.budget.value if rule.budget else "free" if rule.requeue else ""


def _waits(rule: TransitionRule) -> str:
    parts = []
    if rule.wait is not BackoffKind.NONE:
        parts.append(f"{rule.wait.value} back-off")
    if rule.avoids_cell:
        parts.append("another cell")
    if rule.prefers_cell:
        parts.append("the same cell if it has room")
    return ", ".join(parts)


def _budgets() -> list[str]:
    limits = RetryLimits()
    rows = (
        ("failure", str(limits.failure), "failures of the task", "every charge"),
        ("preemption", str(limits.preemption), "lost cells, vanished containers", "every charge"),
        ("system", str(limits.system), "failures of engine, registry or disk", "consecutive ones"),
    )
    return [
        "## Budgets",
        table(("budget", "default limit", "pays for", "counts"), rows),
        "A task is retried while the count does not exceed the limit (`retries` of the job or"
        " group). An end is charged to\nat most one budget, in the statement that ends the"
        " attempt.\n\n"
        f"* An attempt that stayed RUNNING for {HEALTHY_RUN_SECONDS:g} s resets the"
        " consecutive system failures, and crashes of a service.\n"
        "* Back-off is min(base × 2ⁿ, "
        f"{backoff.CAP_SECONDS:g} s), less up to {backoff.JITTER:.0%} of it: base"
        f" {backoff.FAILURE_BASE_SECONDS:g} s for failures,"
        f" {backoff.SYSTEM_BASE_SECONDS:g} s for the system,"
        f" {backoff.CRASH_BASE_SECONDS:g} s for\n  consecutive crashes of a service; none for a"
        " lost cell or a drain.",
        "## Owner of each state",
        "Each state that is not final has an owner, which acts within the time limit. The first"
        " matching row applies.",
        _owners("a task that is", TASK_OWNERS),
        "Jobs and cells ([retention](retention.md) and [convergence](convergence.md#repair)"
        " describe rules 11 and 12):",
        _owners("what", (item for item in OTHER_OWNERS if item.number not in _ON_OTHER_PAGES)),
    ]


def _owners(head: str, owners: Iterable[Owner]) -> str:
    rows = ((item.what, item.actor, item.longest, item.then) for item in owners)
    return table((head, "owner", "time limit", "then"), rows)


def _others() -> list[str]:
    return [
        "## A job's state",
        "It is computed whenever the state of a task changes"
        " (`controlplane/domain/state/rollup.py`). The first rule\nthat holds applies.\n\n"
        + "\n".join(
            f"{number}. {rule.when}: **{rule.state.name}**" for number, rule in enumerate(RULES, 1)
        ),
        "![How a job's state follows](images/job.svg)",
        "A job that must end while tasks are open has its future state in `ending_as`. Its tasks"
        " are not placed any more, its\nopen tasks are ended page by page, and it stays RUNNING"
        " until none is open.",
        "## Cells",
        table(("state", "meaning"), ((f"**{s.value}**", CELLS[s]) for s in CellState)),
        "## Reasons",
        "Each row of the history has a reason; API, admin and command show the same text. This text"
        " is also the\n`failure_reason` of a task that ends without success, unless the third"
        " column has another.",
        table(
            ("code", "text", "`failure_reason`"),
            ((f"`{code.value}`", text, _failure(code)) for code, text in REASONS.items()),
        ),
    ]


_CLOSER: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.EXIT_STATUS: "exit status 1 (the actual status)",
        Reason.INPUT_CORRUPT: "the file, its SHA-256 and the expected one",
        Reason.IMAGE_ERROR: "the error of engine or registry about the image",
        Reason.COMMAND_ERROR: "the engine's error about the command",
        Reason.USER_ERROR: "the part that cannot run, and the error",
        Reason.HEALTH_CHECK_FAILED: "the output of the check",
        Reason.REJECTED: "can never be placed, with the cause",
    }
)


def _failure(reason: Reason) -> str:
    """Return the failure reason of a task if it is not the text of its reason."""
    found = _CLOSER.get(reason) or failure_reason_of(reason)
    return "" if found == REASONS[reason] else found
