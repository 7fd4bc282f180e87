"""What happens in one round of a cell's loop."""

from workers.agent.inputs import OrderMessage
from workers.attempt.events import EndedEvent, StartedEvent
from workers.service.host import Incoming, without_superseded


def test_start_event_superseded_by_its_end_in_the_same_round_is_dropped() -> None:
    order, ended = OrderMessage("…"), EndedEvent("a", 2.0, exit_code=0, started_at=1.0)
    batch: list[Incoming] = [
        ("c", order),
        ("c", StartedEvent("a", 1.0)),
        ("c", StartedEvent("b", 1.5)),
        ("c", ended),
    ]
    assert without_superseded(batch) == [batch[0], batch[2], batch[3]]


def test_start_event_with_more_facts_than_its_end_is_kept() -> None:
    known = EndedEvent("a", 2.0, exit_code=0, started_at=1.0)
    start = StartedEvent("a", 1.0, "id", {"http": "host:80"})
    batches: tuple[list[Incoming], ...] = (
        [("c", start), ("c", known)],
        [("c", StartedEvent("a", 1.0)), ("c", EndedEvent("a", 2.0))],
        [("c", StartedEvent("a", 1.0)), ("another", known)],
    )
    for batch in batches:
        assert without_superseded(batch) == batch
