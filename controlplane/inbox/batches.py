"""Apply messages in batches, one transaction each; move invalid ones to the dead letters."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Self

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError

from controlplane import clock
from controlplane.commands.attempts.hook_ends import EndMeanings, call_about_ends
from controlplane.commands.attempts.reports import (
    Acknowledgement,
    ReceivedReport,
    ReportBatchResult,
    record_reports,
)
from controlplane.commands.cells.floods import quarantine_flooding
from controlplane.commands.cells.messages import (
    Beat,
    answer_heartbeats,
    record_goodbye,
    record_registration,
)
from controlplane.commands.cells.probes import record_probes
from controlplane.commands.cells.rotation import complete_rotation
from controlplane.commands.state.apply import apply
from controlplane.commands.state.findings import add_dead_letter
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.codec import clean_text
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.cells.probes import Probe
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.inbox.floods import FloodMeter
from controlplane.inbox.sorting import (
    Directory,
    GoodbyeMessage,
    RegistrationMessage,
    SortedBatch,
    sort_messages,
)

log = structlog.get_logger(__name__)

BATCH_LOST = "inbox_batch_lost"

IDLE_INTERVALS = 3.0
"""At most this many intervals of `sync_seconds` between answers to cells without attempts."""

FORGET_SECONDS = 5.0
"""Minimum interval between reloads of keys after a bad MAC."""


class Inbox:
    """Applies raw messages. Heartbeats are answered in groups, every `sync_seconds`.

    A group of cells without attempts waits longer, `idle_seconds`, for more of them: each group
    takes two statements. A batch of heartbeats alone uses no statement until they are answered.
    `timer`: the time in seconds that separates groups; by default that of the control plane's
    clock.
    """

    def __init__(
        self,
        *,
        sync_seconds: float,
        idle_seconds: float = 0.0,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self._directory = Directory()
        self._sync_seconds = sync_seconds
        self._idle_seconds = max(sync_seconds, idle_seconds)
        self._timer = timer or _seconds_of_clock
        self._beats: dict[CellAddress, Beat] = {}
        self._probes: set[Probe] = set()
        self._rotated: set[CellAddress] = set()
        self._floods = FloodMeter()
        self._forgot_at: float | None = None
        self._lost = _LostBatches()
        self._synced_at: float | None = None
        self.applied = 0
        self.ignored: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()

    @classmethod
    def with_settings(cls, timer: Callable[[], float] | None = None) -> Self:
        """Return an inbox with the intervals of the installation.

        Leases depend on heartbeats, and convergence on the probes that wait with them: cells
        without attempts wait for others at most as long as an interval of either.
        """
        chosen = settings.CELLRUN
        idle_seconds = min(
            IDLE_INTERVALS * chosen.sync_seconds,
            chosen.heartbeat_seconds,
            chosen.convergence_interval_seconds,
        )
        return cls(sync_seconds=chosen.sync_seconds, idle_seconds=idle_seconds, timer=timer)

    @property
    def seconds_until_answer(self) -> float | None:
        """Return in how many seconds the waiting heartbeats are due; None if none waits."""
        if not self._beats:
            return None
        if self._synced_at is None:
            return 0.0
        # If the clock was set back, cells must not wait until it has caught up.
        return max(self._interval - abs(self._timer() - self._synced_at), 0.0)

    def apply(self, raw: Sequence[str], queues: Sequence[str] | None = None) -> bool:
        """Apply a batch; answer due heartbeats. Return whether the database was used.

        `queues`: the queue of each message, see `sort_messages`. Raise only if the database is
        unavailable.
        """
        self._report_lost()
        found = sort_messages(raw, self._directory, queues)
        self._rotated |= found.rotated
        # Waiting heartbeats come before the rest of this batch, since leases depend on them.
        has_used_database = self._answer_if_due() or found.is_more_than_beats
        # Before their messages: an order after an answer is sealed with the same key.
        has_used_database |= self._complete_rotations()
        if found.is_more_than_beats:
            self._apply(found, clock.now())
        # Not those of a failed batch, which their cells send again. After the reports of the batch,
        # which end attempts that the heartbeats no longer list.
        self._beats |= {beat.address: beat for beat in found.beats}
        self._probes.update(found.probes)
        if found.counts:
            self._meter(found)
        return self._answer_if_due() or has_used_database

    def note_lost(self, messages: int, error: Exception) -> None:
        """Remember a batch that could not be applied; the next successful one raises an alert."""
        self._lost = _LostBatches(
            self._lost.batches + 1, self._lost.messages + messages, repr(error)
        )

    def _report_lost(self) -> None:
        if self._lost.batches:
            alert = RaiseAlert(BATCH_LOST, "inbox", self._lost.text)
            apply(Effects(alerts=[alert]), now=clock.now())
            self._lost = _LostBatches()

    def _answer_if_due(self) -> bool:
        if self.seconds_until_answer:
            return False
        beats, self._beats = [*self._beats.values()], {}
        probes, self._probes = self._probes, set()
        if beats:
            self._synced_at = self._timer()
            answer_heartbeats(beats, now=clock.now())
        if probes:
            # A recorded probe proves that the heartbeats before it were applied: record it after
            # them, and not at all if they failed, or convergence may declare their cells lost.
            record_probes(probes, now=clock.now())
        return bool(beats or probes)

    def _complete_rotations(self) -> bool:
        has_some = bool(self._rotated)
        while self._rotated:
            address = next(iter(self._rotated))
            try:
                complete_rotation(address, now=clock.now())
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # as for registrations; both keys of the cell stay valid
                # So that its next message, also a heartbeat, tries again.
                self._directory.learn((), again=[address.name])
                text = f"cell {address.name} cannot end its former key: {error}"
                _report(RaiseAlert("rotation_failed", address.name, clean_text(text, 1000)))
            self._rotated.discard(address)
        return has_some

    def _meter(self, found: SortedBatch) -> None:
        flooding = self._floods.count(found.counts, seconds=self._timer())
        if flooding:
            quarantine_flooding(flooding, now=clock.now())

    @property
    def _interval(self) -> float:
        is_idle = all(beat.is_idle for beat in self._beats.values())
        return self._idle_seconds if is_idle else self._sync_seconds

    def _apply(self, found: SortedBatch, now: datetime) -> None:
        self.dropped.update(found.dropped)
        if found.dropped["bad_mac"]:
            self._forget_keys()
        if found.reported:
            self._record(found, now)
        for item in found.arrivals_and_departures:
            if isinstance(item, RegistrationMessage):
                self._register(item, now)
            else:
                self._depart(item, now)

    def _forget_keys(self) -> None:
        seconds, last = self._timer(), self._forgot_at
        if last is None or abs(seconds - last) >= FORGET_SECONDS:
            self._forgot_at = seconds
            self._directory.forget()

    @staticmethod
    def _depart(item: GoodbyeMessage, now: datetime) -> None:
        try:
            record_goodbye(item.address, item.goodbye, seq=item.seq, now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # as for registrations; the lease of the cell expires
            log.error("goodbye_failed", cell=item.address.name, error=str(error))

    @staticmethod
    def _register(item: RegistrationMessage, now: datetime) -> None:
        address, register = item.address, item.register
        try:
            record_registration(
                address, register, seq=item.seq, is_supported=item.is_supported, now=now
            )
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # an error for one cell must not stop the others
            text = f"cell {address.name} cannot be registered: {error}"
            _report(RaiseAlert("registration_failed", address.name, clean_text(text, 1000)))

    def _record(self, found: SortedBatch, now: datetime) -> None:
        pending = [_ReportChunk(found.reported, found.acknowledgements)]
        reported = [(item.sender, item.report) for item in found.reported]
        meanings = call_about_ends(reported, now=now)
        while pending:
            part = pending.pop()
            try:
                recorded = run_in_transaction(partial(self._record_part, part, meanings, now))
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # one invalid report must not delay the others
                if len(part.reported) > 1:
                    pending += part.halves()
                    continue
                self._put_aside(part, error, now)
                if part.acknowledgements:
                    pending.append(_ReportChunk([], part.acknowledgements))
            else:
                self.applied += recorded.applied
                for why, count in recorded.ignored.items():
                    self.ignored[why] = self.ignored.get(why, 0) + count

    @staticmethod
    def _record_part(
        part: "_ReportChunk", meanings: EndMeanings, now: datetime
    ) -> ReportBatchResult:
        return record_reports(part.reported, part.acknowledgements, now=now, meanings=meanings)

    @staticmethod
    def _put_aside(part: "_ReportChunk", error: Exception, now: datetime) -> None:
        for item in part.reported:
            log.error("report_put_aside", attempt=item.report.uid, error=str(error))
            add_dead_letter(source="inbox", error=str(error), body=str(item.report.body()), now=now)


@dataclass(frozen=True, slots=True)
class _LostBatches:
    """Batches that were lost and not reported yet, with the last error."""

    batches: int = 0
    messages: int = 0
    error: str = ""

    @property
    def text(self) -> str:
        """Return the text of the alert."""
        what = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        text = f"{what} with {self.messages} messages of cells lost; last error: {self.error}"
        return clean_text(text, 1000)


def _report(alert: RaiseAlert) -> None:
    """Log and raise an alert about one cell."""
    log.error(alert.kind, cell=alert.subject, error=alert.text)
    apply(Effects(alerts=[alert]), now=clock.now())


def _seconds_of_clock() -> float:
    return clock.now().timestamp()


@dataclass(frozen=True, slots=True)
class _ReportChunk:
    """Reports to record in one transaction; the last chunk has the acknowledgements."""

    reported: Sequence[ReceivedReport]
    acknowledgements: Sequence[Acknowledgement]

    def halves(self) -> list["_ReportChunk"]:
        """Return the two halves, the second first: the caller takes the last of a list next."""
        middle = len(self.reported) // 2
        return [
            _ReportChunk(self.reported[middle:], self.acknowledgements),
            _ReportChunk(self.reported[:middle], ()),
        ]
