"""Reports: numbered, coalesced, resent until acknowledged; leases: from the heartbeat on."""

from dataclasses import replace
from typing import Any

import pytest

from controlplane.contract.messages.reports import (
    MAX_REPORTS,
    MESSAGE_CHARS,
    RESULT_BYTES,
    AttemptReport,
)
from controlplane.contract.states import TaskState
from controlplane.contract.wire import envelope
from workers.agent.inputs import ClockReading
from workers.agent.lease import CLOCK_SECONDS, Lease
from workers.agent.reporting import Reporter, SequenceNumbers


def a_reporter(acked: int = 0) -> tuple[Reporter, SequenceNumbers]:
    numbers = SequenceNumbers(lambda: 1)
    return Reporter(numbers, acked=acked), numbers


def report_of(uid: str, state: TaskState = TaskState.RUNNING) -> AttemptReport:
    return AttemptReport(uid, 0, state)


def sent(messages: object) -> list[tuple[int, list[str]]]:
    return [(item.after, [report.uid for report in item.reports]) for item in messages]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "large",
    [
        {"result": "\x01" * RESULT_BYTES},
        {"plugin_state": {"text": "x" * 65_000}},
        {"outputs": ({"name": '"' * 255, "size": 1, "sha256": "0" * 64, "uri": "/x"},) * 500},
        {"message": "\u00e9" * MESSAGE_CHARS},
    ],
)
def test_report_messages_stay_within_the_envelope_limit(large: dict[str, Any]) -> None:
    reporter, _ = a_reporter()
    for number in range(MAX_REPORTS + 1):
        reporter.add(AttemptReport(f"uid-{number}", 0, TaskState.SUCCEEDED, **large))
    messages = list(reporter.flush())
    for message in messages:
        text = envelope.seal(
            b"k" * 32,
            cell="a",
            incarnation="i",
            seq=1,
            body=message.body(),
            payload_seal=envelope.Seal(b"s" * 32, b"n" * 12),
        )
        assert len(text) <= envelope.MAX_BYTES
    uids = [report.uid for message in messages for report in message.reports]
    assert uids == [f"uid-{number}" for number in range(MAX_REPORTS + 1)]
    lasts = [message.reports[-1].seq for message in messages]
    assert [message.after for message in messages] == [0, *lasts[:-1]]


def test_sequence_numbers_grow_with_journal_entries() -> None:
    first, second = SequenceNumbers(lambda: 1), SequenceNumbers(lambda: 2)
    assert max(first.draw() for _ in range(1000)) < second.draw()


def test_only_the_latest_report_of_an_attempt_is_sent() -> None:
    reporter, _ = a_reporter()
    reporter.add(report_of("a"))
    reporter.add(report_of("a", TaskState.SUCCEEDED))
    (message,) = reporter.flush()
    assert [report.state for report in message.reports] == [TaskState.SUCCEEDED]
    assert sent(reporter.flush()) == []


def test_each_message_refers_to_the_previous_one() -> None:
    reporter, _ = a_reporter()
    reporter.add(report_of("a"))
    (first,) = reporter.flush()
    reporter.add(report_of("b"))
    (second,) = reporter.flush()
    assert second.after == first.reports[-1].seq


def test_acknowledged_report_is_not_sent_again() -> None:
    reporter, numbers = a_reporter()
    reporter.add(report_of("a"))
    (message,) = reporter.flush()
    safe, again = reporter.acknowledge(message.reports[-1].seq, sent_before=numbers.draw())
    assert [report.uid for report in safe] == ["a"]
    assert sent(again) == []
    assert reporter.waiting == 0


def test_lost_report_is_sent_again_with_all_later_reports() -> None:
    reporter, numbers = a_reporter()
    reporter.add(report_of("lost"))
    (lost,) = reporter.flush()
    reporter.add(report_of("arrived"))
    list(reporter.flush())
    safe, again = reporter.acknowledge(lost.after, sent_before=numbers.draw())
    assert safe == []
    assert sent(again) == [(lost.after, ["lost", "arrived"])]


def test_report_sent_after_the_heartbeat_is_not_resent_by_its_answer() -> None:
    reporter, numbers = a_reporter()
    heartbeat = numbers.draw()
    reporter.add(report_of("a"))
    list(reporter.flush())
    assert sent(reporter.acknowledge(0, sent_before=heartbeat)[1]) == []


def test_many_reports_are_split_into_chained_messages() -> None:
    reporter, _ = a_reporter()
    for number in range(MAX_REPORTS + 1):
        reporter.add(report_of(str(number)))
    first, second = reporter.flush()
    assert len(first.reports) == MAX_REPORTS
    assert second.after == first.reports[-1].seq


def test_reports_resume_from_a_lower_acknowledged_number() -> None:
    reporter, numbers = a_reporter(acked=900)
    reporter.add(report_of("a"))
    list(reporter.flush())
    _, again = reporter.acknowledge(100, sent_before=numbers.draw())
    assert sent(again) == [(100, ["a"])]


def test_lease_counts_from_the_time_of_the_request() -> None:
    lease = Lease()
    lease.note_sent(1, 100.0)
    assert lease.renew(1, lease_seconds=30.0, server_time=5000.0, now=ClockReading(0.0, 103.0))
    assert lease.remaining(110.0) == 20.0


def test_lease_expiry_never_moves_backwards() -> None:
    lease = Lease()
    lease.note_sent(1, 100.0)
    lease.note_sent(2, 105.0)
    lease.renew(2, lease_seconds=30.0, server_time=0.0, now=ClockReading(0.0, 106.0))
    lease.renew(1, lease_seconds=30.0, server_time=0.0, now=ClockReading(0.0, 107.0))
    assert lease.expires_at == 135.0


def test_answer_to_an_unknown_request_renews_nothing() -> None:
    lease = Lease()
    assert not lease.renew(9, lease_seconds=30.0, server_time=0.0, now=ClockReading(0.0, 0.0))
    assert lease.server_time(0.0) is None


def test_server_time_estimate_is_never_behind() -> None:
    lease = Lease()
    lease.note_sent(1, 100.0)
    lease.renew(1, lease_seconds=30.0, server_time=5001.0, now=ClockReading(0.0, 103.0))
    server = lease.server_time(103.0)
    assert server == pytest.approx(5004.0)


@pytest.mark.parametrize("ahead", [-30.0, 0.5, 7.0])
def test_clock_offset_is_measured_from_the_fastest_answer(ahead: float) -> None:
    lease = Lease()
    assert lease.clock_ahead is None
    for seq, trip in enumerate((4.0, 0.2, 3.0)):
        lease.note_sent(seq, 100.0 + seq)
        boot = 100.0 + seq + trip
        # Answered at once, and long on the way back: the worst for an estimate.
        server = 5000.0 + seq
        lease.renew(
            seq, lease_seconds=30.0, server_time=server, now=ClockReading(4900 + boot + ahead, boot)
        )
    assert lease.clock_ahead == pytest.approx(ahead, abs=0.101)
    assert lease.clock_to_correct == (0.0 if abs(ahead) < CLOCK_SECONDS else lease.clock_ahead)


def test_report_times_are_corrected_by_the_clock_offset() -> None:
    numbering, _ = a_reporter()
    numbering.add(replace(report_of("u"), started_at=100.0, finished_at=110.0))
    ((corrected,),) = [item.reports for item in numbering.flush(7.0)]
    assert (corrected.started_at, corrected.finished_at) == (93.0, 103.0)
