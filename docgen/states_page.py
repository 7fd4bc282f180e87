"""docs/states.md: every state, every legal change, every budget, from the tables of the domain."""

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
    Event,
    Limits,
    Rule,
    Wait,
)
from docgen.rollup_rules import RULES
from docgen.states_picture import NOT_YET, is_charged_later, targets
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
        S.PENDING: "waits to be placed; says why",
        S.ASSIGNED: "given to a cell that has not begun yet",
        S.BUILDING: "its cell has it in hand: waits, inputs, image, creation, first health check",
        S.RUNNING: "its program runs",
        S.SUCCEEDED: "its program ended with exit status 0",
        S.FAILED: "it failed by itself, or the system failed it too often",
        S.KILLED: "ended on purpose: cancelled, timed out, or with its job",
        S.WORKER_FAILED: "its cell was lost or its container vanished too often",
        S.UNSCHEDULABLE: "not placed before its scheduling deadline, or never placeable",
        S.PREEMPTED: "gave way to more important work too often",
    }
)

EVENTS: Mapping[Event, str] = MappingProxyType(
    {
        Event.PLACED: "placement gives it to a cell",
        Event.CACHE_HIT: "its result is in the cache",
        Event.DEADLINE_PASSED: "its scheduling deadline passes",
        Event.REJECTED: "a rule says that it can never be placed",
        Event.BUILDING: "its cell reports BUILDING",
        Event.STARTED: "its cell reports RUNNING",
        Event.EXITED_ZERO: "exit status 0",
        Event.USER_FAILED: "non-zero exit, out of memory, image or input at fault",
        Event.SYSTEM_FAILED: "engine, registry or disk at fault; a build that took too long",
        Event.REFUSED: "its cell refuses it",
        Event.START_EXPIRED: "its cell did not answer before `start_before`",
        Event.CELL_LOST: "its cell is lost",
        Event.VANISHED: "its container vanished, or was stopped by somebody else",
        Event.PREEMPTED: "more important work takes its place",
        Event.DRAINED: "its cell stops and sends its work away",
        Event.KILLED: "cancelled, timed out, idle, lifetime over, its job or a dependency ended",
        Event.HEALTH_FAILED: "kind `inference`: it was RUNNING, and its health check failed, or its"
        " program ended",
        Event.GANG_BROKEN: "a member of its gang failed for good",
        Event.GANG_BOUNCED: "its gang fell below its minimum",
    }
)

CELLS: Mapping[CellState, str] = MappingProxyType(
    {
        CellState.READY: "takes work",
        CellState.CORDONED: "takes no new work; what runs goes on",
        CellState.DRAINING: "takes no new work; what it has leaves it",
        CellState.QUARANTINED: "does not confirm stops, fails at everything, or says that it is"
        " full; takes no new work",
        CellState.LOST: "silent beyond its lease; its attempts were released",
    }
)

RELEASES: Mapping[ReleaseKind, str] = MappingProxyType(
    {
        ReleaseKind.CONFIRMED: "its cell: the container is gone and will not come",
        ReleaseKind.CELL_LOST: "nobody: the cell is lost, and that is the declared risk",
        ReleaseKind.OPERATOR: "an operator, by hand, who vouches for it",
    }
)


def write() -> str:
    """The whole page."""
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
        "A task, its attempts and its job have states of these ten. A state changes only by the"
        " table below\n(`controlplane/domain/state/transitions.py`); what is not in it is refused"
        " and changes nothing. A terminal state is\nfinal. Numbers and names are those of Iris.",
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
                    EVENTS[event] + (" ¹" if event in NOT_YET else ""),
                    ", ".join(state.name for state in targets(rule)),
                    rule.attempt.name if rule.attempt else "",
                    _pays(rule),
                    _waits(rule),
                )
            )
    return [
        "## Changes",
        "*Becomes* with two states: PENDING as long as the budget lasts, then the other. *Free*:"
        " charged to no budget.",
        table(("from", "what happens", "task becomes", "attempt becomes", "budget", "then"), rows),
        "¹ The table is complete; nothing in this version causes these yet.",
        "What was asked to run *at most once* never becomes PENDING by an end, whatever is left of"
        " its budgets, unless its\ncell says that its container was never created; its order does"
        " not expire either.",
        "An attempt that was ended by the control plane is not released by that: it holds its"
        " capacity, and its task,\nuntil one of these says that it is gone. The task is not placed"
        " again before.",
        table(
            ("release", "who says so"),
            ((f"`{kind.value}`", RELEASES[kind]) for kind in ReleaseKind),
        ),
    ]


def _by_rule(event: Event) -> list[tuple[Rule, list[S]]]:
    found: dict[Rule, list[S]] = defaultdict(list)
    for state in ORDER:
        if rule := TRANSITIONS.get((state, event)):
            found[rule].append(state)
    return list(found.items())


def _states(states: list[S]) -> str:
    return "active" if set(states) == ACTIVE else ", ".join(state.name for state in states)


def _pays(rule: Rule) -> str:
    if rule.exhausts and rule.budget:
        return f"{rule.budget.value}: all that is left, and 1 more"
    if is_charged_later(rule):
        return f"free, from the {FREE_REFUSALS + 1}th in a row system"
    return rule.budget.value if rule.budget else "free" if rule.requeue else ""


def _waits(rule: Rule) -> str:
    parts = []
    if rule.wait is not Wait.NONE:
        parts.append(f"{rule.wait.value} back-off")
    if rule.avoids_cell:
        parts.append("another cell")
    if rule.prefers_cell:
        parts.append("the same cell if it has room")
    return ", ".join(parts)


def _budgets() -> list[str]:
    limits = Limits()
    rows = (
        ("failure", str(limits.failure), "failures by the task's own fault", "every charge"),
        ("preemption", str(limits.preemption), "lost cells, vanished containers", "every charge"),
        ("system", str(limits.system), "failures of engine, registry or disk", "those in a row"),
    )
    return [
        "## Budgets",
        table(("budget", "default limit", "pays for", "counts"), rows),
        "A task is tried again while what is counted does not exceed the limit"
        " (`retries` of the job or group). An end\nis charged to at most one budget, in the same"
        " statement that ends the attempt.\n\n"
        f"* An attempt that stayed RUNNING for {HEALTHY_RUN_SECONDS:g} s breaks a row of system"
        " failures, and of crashes of a service.\n"
        "* Back-off is min(base × 2ⁿ, "
        f"{backoff.CAP_SECONDS:g} s), less up to {backoff.JITTER:.0%} of it: base"
        f" {backoff.FAILURE_BASE_SECONDS:g} s for failures,"
        f" {backoff.SYSTEM_BASE_SECONDS:g} s for the system,"
        f" {backoff.CRASH_BASE_SECONDS:g} s for\n  crashes of a service in a row; none for a"
        " lost cell or a drain.",
        "## Who owns a state",
        "Nothing stays for ever unseen: each state that is not final has an owner, the first row"
        " that holds.",
        _owners("a task that is", TASK_OWNERS),
        "Jobs and cells have theirs, too:",
        _owners("what", OTHER_OWNERS),
    ]


def _owners(head: str, owners: Iterable[Owner]) -> str:
    rows = ((item.what, item.who, item.longest, item.then) for item in owners)
    return table((head, "is seen to by", "at the longest", "and then"), rows)


def _others() -> list[str]:
    return [
        "## A job's state",
        "It is derived from its tasks' states whenever one changes"
        " (`controlplane/domain/state/rollup.py`). The first rule\nthat holds decides. Terminal is"
        " final.\n\n"
        + "\n".join(
            f"{number}. {rule.when}: **{rule.state.name}**" for number, rule in enumerate(RULES, 1)
        ),
        "![How a job's state follows](images/job.svg)",
        "A job that must end while tasks are open notes how it will end (`ending_as`), takes no new"
        " places, and ends its\nopen tasks page by page; it stays RUNNING until none is left.",
        "## Cells",
        table(("state", "meaning"), ((f"**{s.value}**", CELLS[s]) for s in CellState)),
        "## Reasons",
        "Each line of the history has one; API, pages and command show the same words. A task that"
        " failed says why in\nthose of the third column, its `failure_reason`.",
        table(
            ("code", "text", "`failure_reason`"),
            ((f"`{code.value}`", text, _failure(code)) for code, text in REASONS.items()),
        ),
    ]


# No task ends with these, or none as failed.
_NO_FAILURES = frozenset(
    {
        Reason.SUBMITTED,
        Reason.PLACED,
        Reason.BUILDING,
        Reason.STARTED,
        Reason.SUCCEEDED,
        Reason.CACHE_HIT,
        Reason.GANG_BOUNCED,
        Reason.RELEASED,
        Reason.RELEASED_BY_OPERATOR,
        Reason.TASKS_DECIDED,
    }
)
_CLOSER: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.EXIT_STATUS: "exit status 1 (or whichever)",
        Reason.IMAGE_ERROR: "what engine or registry said of the image",
        Reason.COMMAND_ERROR: "what the engine said of the command",
        Reason.USER_ERROR: "what of it cannot be run, and why",
        Reason.HEALTH_CHECK_FAILED: "what the check said",
        Reason.REJECTED: "can never be placed, and why",
    }
)


def _failure(reason: Reason) -> str:
    if reason in _NO_FAILURES:
        return ""
    return _CLOSER.get(reason) or failure_reason_of(reason)
