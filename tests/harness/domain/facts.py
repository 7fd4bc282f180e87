"""Facts for tests of decisions, in one line each."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import ReportSender
from controlplane.domain.state.facts import AttemptFacts, TaskFacts
from controlplane.domain.state.transitions import Counters, RetryLimits

UID = UUID(int=7)
CREATED = datetime(2030, 1, 1, tzinfo=UTC)
NOW = CREATED + timedelta(seconds=100)
SENDER = ReportSender(cell_id=5, incarnation="one")


def attempt(state: S = S.RUNNING, **changes: Any) -> AttemptFacts:
    """An attempt on cell 5, created 100 s ago, last report number 10."""
    facts: dict[str, Any] = {
        "uid": UID,
        "cell_id": 5,
        "incarnation": "one",
        "state": state,
        "phase": "",
        "report_seq": 10,
        "created_at": CREATED,
        "start_before": CREATED + timedelta(seconds=60),
        "started_at": CREATED + timedelta(seconds=1) if state is S.RUNNING else None,
        "released_at": None,
    }
    return AttemptFacts(**{**facts, **changes})


def task(
    state: S = S.RUNNING,
    present: AttemptFacts | None = None,
    counters: Counters | None = None,
    limits: RetryLimits | None = None,
) -> TaskFacts:
    """Task 3 of group 2 of job 1."""
    return TaskFacts(3, 2, 1, state, counters or Counters(), limits or RetryLimits(), present)


def report(state: S, seq: int = 11, **changes: Any) -> AttemptReport:
    """A report of the attempt."""
    return AttemptReport(uid=str(UID), seq=seq, state=state, **changes)
