"""Rule 4: end attempts that exceed their timeout or lifetime if the cell did not."""

from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.task_rule import TaskRule, unreleased
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


def decide_overrun(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """End a RUNNING attempt past its timeout or lifetime and the cell's grace period."""
    reason = Reason.LIFETIME_OVER if facts.timeout_is_lifetime else Reason.TIMEOUT
    return change_task(facts, Event.KILLED, ChangeCause(reason), now=now)


def _is_running(facts: TaskFacts, now: datetime) -> bool:
    attempt = unreleased(facts)
    return attempt is not None and attempt.state is S.RUNNING


RULE = TaskRule("overruns", decide_overrun, _is_running)
