"""Rule 3: end attempts that take too long to build, and requeue their tasks."""

from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.task_rule import TaskRule, unreleased
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


def decide_stuck_build(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """End an attempt that is BUILDING beyond the pool's timeouts, as a system failure."""
    return change_task(facts, Event.SYSTEM_FAILED, ChangeCause(Reason.BUILD_TIMEOUT), now=now)


def _is_building(facts: TaskFacts, now: datetime) -> bool:
    attempt = unreleased(facts)
    return attempt is not None and attempt.state is S.BUILDING


RULE = TaskRule("stuck_builds", decide_stuck_build, _is_building)
