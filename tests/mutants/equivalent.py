"""Mutants that no test can distinguish from the original, each with the reason.

Lines are compared without their indentation. An entry that fits no mutant any more fails the suite.
"""

from dataclasses import dataclass

from tests.mutants.making import Mutant


@dataclass(frozen=True, slots=True)
class Equivalent:
    """In the module `path`, the lines `old` becoming `new` changes nothing, because of `reason`."""

    path: str
    old: str
    new: str
    reason: str

    def fits(self, mutant: Mutant) -> bool:
        """Whether it speaks of this mutant."""
        return (self.path, self.old, self.new) == (mutant.path, mutant.old, mutant.new)


_D = "controlplane/domain/"

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        f"{_D}state/backoff.py",
        "_GOLDEN = 0.6180339887498949",
        "_GOLDEN = 1.618033988749895",
        "only the fraction of an integer times it is used, which is the same",
    ),
    Equivalent(
        f"{_D}state/backoff.py",
        "_GOLDEN = 0.6180339887498949",
        "_GOLDEN = -0.3819660112501051",
        "only the fraction of an integer times it is used, which is the same",
    ),
    Equivalent(
        f"{_D}state/backoff.py",
        "fraction = ((row_id + 7 * tries) * _GOLDEN) % 1.0",
        "fraction = ((row_id + 7 * tries) / _GOLDEN) % 1.0",
        "the golden ratio's reciprocal is itself and 1: the fraction is the same",
    ),
    Equivalent(
        f"{_D}state/backoff.py",
        "full = min(base * 2.0 ** min(max(tries - 1, 0), 32), cap)",
        "full = min(base * 2.0 ** min(max(tries - 1, 0), 31), cap)",
        "the cap is passed long before; the exponent is bounded against overflow alone",
    ),
    Equivalent(
        f"{_D}state/backoff.py",
        "full = min(base * 2.0 ** min(max(tries - 1, 0), 32), cap)",
        "full = min(base * 2.0 ** min(max(tries - 1, 0), 33), cap)",
        "the cap is passed long before; the exponent is bounded against overflow alone",
    ),
    Equivalent(
        f"{_D}state/states.py",
        "PROGRESS = {TaskState.ASSIGNED: 0, TaskState.BUILDING: 1, TaskState.RUNNING: 2}",
        "PROGRESS = {TaskState.ASSIGNED: 0, TaskState.BUILDING: 1, TaskState.RUNNING: 3}",
        "the numbers are compared with each other and with -1, never used otherwise",
    ),
    Equivalent(
        f"{_D}state/transitions.py",
        "if not counters.system_row and not counters.refusal_row:",
        "if False:",
        "a short cut for speed: without a row there is nothing that the rest could end",
    ),
    Equivalent(
        f"{_D}state/transitions.py",
        "if rule.wait is BackoffKind.SYSTEM and rule.requeue and"
        " counters.refusal_row > FREE_REFUSALS:",
        "if (rule.wait is BackoffKind.SYSTEM and counters.refusal_row > FREE_REFUSALS):",
        "the only other row that waits so is a system failure, which is charged to system anyway",
    ),
    Equivalent(
        f"{_D}state/task_changes.py",
        "ran = (finished_at - started_at).total_seconds() if started_at and is_active else 0.0",
        "ran = (finished_at - started_at).total_seconds() if started_at and is_active else -1.0",
        "a run is only compared with the 60 s after which it counts as healthy",
    ),
    Equivalent(
        f"{_D}state/task_changes.py",
        "ran = (finished_at - started_at).total_seconds() if started_at and is_active else 0.0",
        "ran = (finished_at - started_at).total_seconds() if started_at and is_active else 1.0",
        "a run is only compared with the 60 s after which it counts as healthy",
    ),
    Equivalent(
        f"{_D}state/task_changes.py",
        "if not avoids or facts.attempt is None:",
        "if (not avoids):",
        "only what ends an attempt avoids a cell; the guard is for the type checker",
    ),
    Equivalent(
        f"{_D}state/rollup.py",
        "if succeeded == replicas:",
        "if False:",
        "rule 1 differs from rules 5 and 7 only for the reader: they come to the same",
    ),
    Equivalent(
        f"{_D}convergence/endings.py",
        "cause = ChangeCause(shown, message, force=force, failure_reason=REASONS[shown])",
        "cause = ChangeCause(shown, message, force=force)",
        "the sentence of the reason is also what a change without a text of its own gives",
    ),
    Equivalent(
        f"{_D}convergence/lost_cells.py",
        "return change_task(facts, Event.CELL_LOST, cause, now=now)",
        "return change_task(facts, Event.VANISHED, cause, now=now)",
        "the table has the same row for both; they differ in docs/states.md",
    ),
    Equivalent(
        f"{_D}convergence/lost_cells.py",
        "change = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=now)",
        "change = change_task(facts, Event.VANISHED, ChangeCause(Reason.CELL_LOST), now=now)",
        "the table has the same row for both; they differ in docs/states.md",
    ),
    Equivalent(
        f"{_D}convergence/lost_cells.py",
        "if facts.exclusive is Exclusive.NO or attempt.state not in TERMINAL:",
        "if (attempt.state not in TERMINAL):",
        "without exclusiveness there never is an instant, which the last line asks for",
    ),
    Equivalent(
        f"{_D}convergence/owners.py",
        "return next((owner for owner in TASK_OWNERS if owner.holds and owner.holds(task)), None)",
        "return next((owner for owner in TASK_OWNERS if (owner.holds(task))), None)",
        "every row of that table has its condition, and a test has it; the guard is for types",
    ),
    Equivalent(
        f"{_D}convergence/task_rules.py",
        "_end(Event.DEADLINE_PASSED, Reason.SCHEDULING_DEADLINE),",
        "_end(Event.REJECTED, Reason.SCHEDULING_DEADLINE),",
        "the table has the same row for both; they differ in docs/states.md",
    ),
)
