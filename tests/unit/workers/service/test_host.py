"""What happens in one round of a cell's loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.reports import Heartbeat
from tests.harness.cell_bench import Bench
from workers.agent.inputs import OrderMessage
from workers.attempt.events import EndedEvent, StartedEvent
from workers.service import host
from workers.service.host import Incoming, advance_cells, without_superseded


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


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[list[Bench]]:
    """Two registered cells of a process: the heartbeat of the second is due 0.3 s later."""
    found = [Bench(tmp_path / name) for name in ("first", "second")]
    found[1].now += 0.3
    for bench in found:
        bench.accept()
        bench.sent.clear()
    yield found
    for bench in found:
        bench.close()


def beats_after(benches: list[Bench], seconds: float) -> list[int]:
    """Advance both cells to `seconds` after the first was accepted; return their heartbeats."""
    now = benches[0].now + seconds
    for bench in benches:
        bench.now = now
    advance_cells([bench.cell for bench in benches], benches[0].moment)
    for bench in benches:
        bench.sent += map(bench.read, (text for _, text in bench.cell.take_outgoing()))
    return [sum(isinstance(item, Heartbeat) for item in bench.sent) for bench in benches]


def test_cells_of_a_process_send_their_heartbeats_together(benches: list[Bench]) -> None:
    rest = benches[0].cell.next_beat - benches[0].now
    assert beats_after(benches, rest - 0.01) == [0, 0]
    assert beats_after(benches, 0.01) == [1, 1]


def test_early_heartbeats_of_a_large_fleet_are_limited(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "MAX_EARLY_BEATS", 0)
    rest = benches[0].cell.next_beat - benches[0].now
    assert beats_after(benches, rest) == [1, 0]
    assert beats_after(benches, 0.3) == [1, 1]


def test_heartbeat_that_is_far_from_due_is_not_sent_with_others(benches: list[Bench]) -> None:
    benches[1].cell.next_beat += 2.0
    assert beats_after(benches, benches[0].cell.next_beat - benches[0].now) == [1, 0]
