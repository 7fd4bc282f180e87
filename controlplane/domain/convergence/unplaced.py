"""Rule 5: end tasks that were not placed before their deadline as UNSCHEDULABLE (Iris)."""

from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.task_rule import TaskRule
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


def decide_unplaced(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """End a task that is PENDING past its scheduling deadline and was considered since."""
    return change_task(
        facts, Event.DEADLINE_PASSED, ChangeCause(Reason.SCHEDULING_DEADLINE), now=now
    )


def _is_pending(facts: TaskFacts, now: datetime) -> bool:
    return facts.state is S.PENDING


RULE = TaskRule("unplaced", decide_unplaced, _is_pending)
