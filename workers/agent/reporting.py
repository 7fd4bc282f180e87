"""Reports until they are acknowledged: numbered, coalesced, repeated from the first missing one.

A report is cumulative, so only the latest one of each attempt is kept. Numbers only grow: the high
bits are the count of journal entries, the low bits a counter. A Register has the number of the time
when the process read the journal. So the control plane detects a journal that was replaced by an
older one: the number of its Register is not new.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from controlplane.contract.codec import compact_json
from controlplane.contract.messages.phases import PhaseChange
from controlplane.contract.messages.reports import MAX_REPORTS, AttemptReport, Reports

# Bytes of reports in one message: quoting in the envelope may double them, and the limit of a
# message is 1 MiB.
MAX_REPORT_BYTES = 400 * 1024
# Size and limits of a plain report, whose size is estimated, because serializing it costs more.
PLAIN_BYTES, PLAIN_CHARS, PLAIN_PHASES = 800, 40, 4
# Messages between two journal entries: with a heartbeat each 5 s, enough for forty years; with one
# each second, for eight.
_COUNTER_BITS = 28
# A Register uses these bits for starts without an answer, the others for its tries.
_START_BITS = 8
_CLAIM_BITS = _COUNTER_BITS - _START_BITS


class SequenceNumbers:
    """The growing message number of an incarnation."""

    def __init__(self, written: Callable[[], int]) -> None:
        """Create a source of numbers; `written` returns the count of all journal entries so far."""
        self._written = written
        self._last = 0
        self._claims = 0

    def draw_claim(self, claim: int, starts: int) -> int:
        """Return the number of a Register; for the arguments see `workers.journal.JournalState`."""
        self._claims = min(self._claims + 1, (1 << _CLAIM_BITS) - 1)
        starts = min(starts, (1 << _START_BITS) - 1)
        return (claim << _COUNTER_BITS) + (starts << _CLAIM_BITS) + self._claims

    def draw(self) -> int:
        """Return the next number."""
        self._last = max(self._last, self._written() << _COUNTER_BITS) + 1
        return self._last


class Reporter:
    """The reports that the control plane has not acknowledged yet."""

    def __init__(self, numbers: SequenceNumbers, *, acked: int) -> None:
        self._numbers = numbers
        self._unsent: dict[str, AttemptReport] = {}
        self._sent: dict[str, AttemptReport] = {}
        # By uid: the number of a report that was sent, and that of its newest phase change.
        self._phase_marks: dict[str, tuple[int, int]] = {}
        self._last_sent = acked
        self.acked = acked

    def add(self, report: AttemptReport) -> None:
        """Queue a report, which replaces an earlier one of the same attempt."""
        self._unsent[report.uid] = report

    def accept(self, seq: int) -> None:
        """Ignore all numbers before `seq`, with which a process was accepted."""
        self._last_sent = max(self._last_sent, seq)
        self.acked = max(self.acked, seq)

    @property
    def has_news(self) -> bool:
        """Whether any report waits to be sent."""
        return bool(self._unsent)

    @property
    def news(self) -> int:
        """The number of reports that wait to be sent."""
        return len(self._unsent)

    @property
    def in_flight(self) -> int:
        """The number of reports that were sent and are not acknowledged."""
        return len(self._sent)

    @property
    def waiting(self) -> int:
        """The number of reports that are not acknowledged."""
        return len(self._unsent.keys() | self._sent.keys())

    def flush(self, clock_ahead: float = 0.0) -> Iterable[Reports]:
        """Return messages with the new reports; subtract `clock_ahead` seconds from their times."""
        fresh = [
            replace(
                report,
                seq=self._numbers.draw(),
                started_at=_shift(report.started_at, clock_ahead),
                finished_at=_shift(report.finished_at, clock_ahead),
                phases=_shift_all(report.phases, clock_ahead),
            )
            for report in self._unsent.values()
        ]
        self._unsent.clear()
        for report in fresh:
            self._sent[report.uid] = report
            if report.phases:
                self._phase_marks.setdefault(report.uid, (report.seq, report.phases[-1].number))
        after = self._last_sent
        if fresh:
            self._last_sent = fresh[-1].seq
        return _messages(after, fresh)

    def acknowledge(
        self, acked: int, *, sent_before: int
    ) -> tuple[list[AttemptReport], Iterable[Reports]]:
        """Handle the answer to message `sent_before`: the control plane has all up to `acked`.

        Return the reports that are safe now, and the messages to repeat: all unsafe reports, if
        the control plane lacks one that was sent before that message.
        """
        self.acked = max(self.acked, acked)
        safe = [report for report in self._sent.values() if report.seq <= self.acked]
        for report in safe:
            del self._sent[report.uid]
            if report.phases:
                self._phase_marks[report.uid] = (report.seq, report.phases[-1].number)
        missing = sorted(self._sent.values(), key=lambda report: report.seq)
        if not missing or missing[0].seq > sent_before:
            return safe, ()
        return safe, _messages(acked, missing)

    def take_safe_phases(self) -> list[tuple[str, int]]:
        """Return (uid, number) for newly safe phase changes, up to that number."""
        marks = self._phase_marks.items()
        safe = [(uid, number) for uid, (seq, number) in marks if seq <= self.acked]
        for uid, _ in safe:
            del self._phase_marks[uid]
        return safe

    def unacknowledged(self) -> Iterable[Reports]:
        """Return all unacknowledged reports as messages, the last ones of an incarnation."""
        self.flush()
        return _messages(self.acked, sorted(self._sent.values(), key=lambda report: report.seq))


def _shift(at: float | None, seconds: float) -> float | None:
    return None if at is None else at - seconds


def _shift_all(phases: tuple[PhaseChange, ...], seconds: float) -> tuple[PhaseChange, ...]:
    if not seconds:
        return phases
    return tuple(replace(change, at=change.at - seconds) for change in phases)


def _messages(after: int, reports: list[AttemptReport]) -> list[Reports]:
    messages = []
    for part in _parts(reports):
        messages.append(Reports(after, tuple(part)))
        after = part[-1].seq
    return messages


def _parts(reports: list[AttemptReport]) -> Iterable[list[AttemptReport]]:
    """Split reports by the limits of one message; a large report gets its own message."""
    part: list[AttemptReport] = []
    size = 0
    for report in reports:
        report_size = _size(report)
        if part and (len(part) >= MAX_REPORTS or size + report_size > MAX_REPORT_BYTES):
            yield part
            part, size = [], 0
        part.append(report)
        size += report_size
    if part:
        yield part


def _size(report: AttemptReport) -> int:
    large = (report.result, report.outputs, report.plugin_state, report.addresses)
    is_plain = len(report.message or "") <= PLAIN_CHARS and len(report.phases) <= PLAIN_PHASES
    if is_plain and all(item is None for item in large) and not _has_long(report.phases):
        return PLAIN_BYTES
    return PLAIN_BYTES + len(compact_json(report.body()))


def _has_long(phases: tuple[PhaseChange, ...]) -> bool:
    return any(len(change.text) > PLAIN_CHARS for change in phases)
