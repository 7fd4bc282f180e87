"""Reports until they are acknowledged: numbered, coalesced, sent again from the first missing one.

A report is cumulative, so only the latest of each attempt is kept. Numbers only grow: the count of
journal entries in the high bits, a counter in the low ones. Every Register of a process has the
number of the moment when it read the journal. So the control plane recognises a cell whose journal
was replaced by an older one: its number is not new.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from controlplane.contract.codec import compact_json
from controlplane.contract.messages.phases import PhaseChange
from controlplane.contract.messages.reports import MAX_REPORTS, AttemptReport, Reports

# Bytes of reports in one message: what an envelope quotes may become twice as long, and its limit
# is 1 MiB.
MAX_REPORT_BYTES = 400 * 1024
# What a report has that carries next to nothing: to write each twice to know it is not worth it.
PLAIN_BYTES, PLAIN_CHARS, PLAIN_PHASES = 800, 40, 4
# Messages between two entries of a journal before the counter is exhausted: with a heartbeat each 5
# s, forty years.
_COUNTER_BITS = 28
# Of them for a Register: starts without an answer, and claims of each of these processes.
_START_BITS = 8
_CLAIM_BITS = _COUNTER_BITS - _START_BITS


class SequenceNumbers:
    """The one growing number of an incarnation."""

    def __init__(self, written: Callable[[], int]) -> None:
        """`written`: how many entries the journal has had so far."""
        self._written = written
        self._last = 0
        self._claims = 0

    def draw_claim(self, claim: int, starts: int) -> int:
        """The number of a Register: see `workers.journal.JournalState` for both."""
        self._claims = min(self._claims + 1, (1 << _CLAIM_BITS) - 1)
        starts = min(starts, (1 << _START_BITS) - 1)
        return (claim << _COUNTER_BITS) + (starts << _CLAIM_BITS) + self._claims

    def draw(self) -> int:
        """The next number."""
        self._last = max(self._last, self._written() << _COUNTER_BITS) + 1
        return self._last


class Reporter:
    """Which reports the control plane has not acknowledged yet."""

    def __init__(self, numbers: SequenceNumbers, *, acked: int) -> None:
        self._numbers = numbers
        self._dirty: dict[str, AttemptReport] = {}
        self._sent: dict[str, AttemptReport] = {}
        # Of an attempt whose reports follow each other: an earlier one, and its newest change.
        self._phased: dict[str, tuple[int, int]] = {}
        self._last_sent = acked
        self.acked = acked

    def add(self, report: AttemptReport) -> None:
        """Put a report in line; it takes the place of an earlier one of its attempt."""
        self._dirty[report.uid] = report

    def accept(self, seq: int) -> None:
        """A new incarnation was accepted with this number: nothing before it counts."""
        self._last_sent = max(self._last_sent, seq)
        self.acked = max(self.acked, seq)

    @property
    def has_news(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._dirty)

    @property
    def news(self) -> int:
        """How many reports wait to be sent."""
        return len(self._dirty)

    @property
    def waiting(self) -> int:
        """How many reports are not acknowledged."""
        return len(self._dirty.keys() | self._sent.keys())

    def flush(self, clock_ahead: float = 0.0) -> Iterable[Reports]:
        """Return messages with the new reports; subtract `clock_ahead` seconds from instants."""
        fresh = [
            replace(
                report,
                seq=self._numbers.draw(),
                started_at=_put_back(report.started_at, clock_ahead),
                finished_at=_put_back(report.finished_at, clock_ahead),
                phases=_put_all_back(report.phases, clock_ahead),
            )
            for report in self._dirty.values()
        ]
        self._dirty.clear()
        for report in fresh:
            self._sent[report.uid] = report
            if report.phases:
                self._phased.setdefault(report.uid, (report.seq, report.phases[-1].number))
        after = self._last_sent
        if fresh:
            self._last_sent = fresh[-1].seq
        return _messages(after, fresh)

    def acknowledge(
        self, acked: int, *, sent_before: int
    ) -> tuple[list[AttemptReport], Iterable[Reports]]:
        """The control plane has everything up to `acked`, as it answered our message `sent_before`.

        Returns the reports that are safe now, and the messages to send again: all that is not
        safe, if something sent before that message is missing there.
        """
        self.acked = max(self.acked, acked)
        safe = [report for report in self._sent.values() if report.seq <= self.acked]
        for report in safe:
            del self._sent[report.uid]
            if report.phases:
                self._phased[report.uid] = (report.seq, report.phases[-1].number)
        missing = sorted(self._sent.values(), key=lambda report: report.seq)
        if not missing or missing[0].seq > sent_before:
            return safe, ()
        return safe, _messages(acked, missing)

    def take_safe_phases(self) -> list[tuple[str, int]]:
        """Return by uid up to which number the changes of phase are safe, each once."""
        phased = self._phased.items()
        safe = [(uid, number) for uid, (seq, number) in phased if seq <= self.acked]
        for uid, _ in safe:
            del self._phased[uid]
        return safe

    def unacknowledged(self) -> Iterable[Reports]:
        """Return all unacknowledged reports once more, as the last messages of a process."""
        self.flush()
        return _messages(self.acked, sorted(self._sent.values(), key=lambda report: report.seq))


def _put_back(at: float | None, seconds: float) -> float | None:
    return None if at is None else at - seconds


def _put_all_back(phases: tuple[PhaseChange, ...], seconds: float) -> tuple[PhaseChange, ...]:
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
    """As many reports, and as many bytes, as one message takes; a large one goes alone."""
    part: list[AttemptReport] = []
    size = 0
    for report in reports:
        more = _size(report)
        if part and (len(part) >= MAX_REPORTS or size + more > MAX_REPORT_BYTES):
            yield part
            part, size = [], 0
        part.append(report)
        size += more
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
