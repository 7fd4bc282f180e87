"""Batches of messages: many in one transaction; a bad one is found and put aside for people."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import structlog
from django.db import InterfaceError, OperationalError

from controlplane import clock
from controlplane.commands.batches import run_in_transaction
from controlplane.commands.cell_messages import (
    Beat,
    answer_heartbeats,
    record_goodbye,
    record_registration,
)
from controlplane.commands.dead_letters import add_dead_letter
from controlplane.commands.effects import raise_alerts
from controlplane.commands.hearing import hear_probes
from controlplane.commands.reports import Acknowledgement, Reported, record_reports
from controlplane.domain.effects import RaiseAlert
from controlplane.inbox.sorting import Directory, Registration, Sorted, sort_messages

log = structlog.get_logger(__name__)


class Inbox:
    """Applies raw messages. Heartbeats are answered in groups, every `sync_seconds`.

    A batch of heartbeats that wait for their group asks nothing of the database. `timer`: seconds
    by which groups are told apart; without one, those of the control plane's clock.
    """

    def __init__(self, *, sync_seconds: float, timer: Callable[[], float] | None = None) -> None:
        self._directory = Directory()
        self._sync_seconds = sync_seconds
        self._timer = timer or _seconds_of_clock
        self._beats: list[Beat] = []
        self._synced_at: float | None = None
        self.applied = 0
        self.ignored: dict[str, int] = {}
        self.dropped = 0

    @property
    def has_beats(self) -> bool:
        """Whether heartbeats wait for their answer."""
        return bool(self._beats)

    def apply(self, raw: Sequence[str]) -> bool:
        """Apply a batch; answer heartbeats if it is time. Whether the database was asked.

        Raises only if the database is away.
        """
        found = sort_messages(raw, self._directory)
        has_asked = found.is_more_than_beats
        if has_asked:
            self._apply(found, clock.now())
        # Not those of a batch that failed: their cells will have to say it again.
        self._beats += found.beats
        if self._beats and self._is_time_to_answer():
            beats, self._beats = self._beats, []
            answer_heartbeats(beats, now=clock.now())
            return True
        return has_asked

    def _is_time_to_answer(self) -> bool:
        seconds, last = self._timer(), self._synced_at
        # If the clock is put back, cells must not wait until it is there again.
        if last is not None and abs(seconds - last) < self._sync_seconds:
            return False
        self._synced_at = seconds
        return True

    def _apply(self, found: Sorted, now: datetime) -> None:
        self.dropped += found.dropped
        if found.dropped:
            self._directory.forget()
        if found.probes:
            hear_probes(found.probes, now=now)
        if found.reported:
            self._record(found, now)
        for item in found.registrations:
            self._register(item, now)
        for address, goodbye, seq in found.goodbyes:
            record_goodbye(address, goodbye, seq=seq, now=now)

    @staticmethod
    def _register(item: Registration, now: datetime) -> None:
        address, register = item.address, item.register
        try:
            record_registration(address, register, seq=item.seq, spoken=item.spoken, now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:  # what one cell says of itself must not silence the others
            log.error("registration_failed", cell=address.name, error=str(error))
            text = f"cell {address.name} cannot be registered: {error}"[:1000]
            raise_alerts([RaiseAlert("registration_failed", address.name, text)], now=now)

    def _record(self, found: Sorted, now: datetime) -> None:
        pending = [_Part(found.reported, found.acknowledgements)]
        while pending:
            part = pending.pop()
            try:
                run_in_transaction(partial(self._record_part, part, now))
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:  # one poisoned report must not hold up the others
                if len(part.reported) > 1:
                    pending += part.halves()
                    continue
                self._put_aside(part, error, now)
                if part.acknowledgements:
                    pending.append(_Part([], part.acknowledgements))

    def _record_part(self, part: "_Part", now: datetime) -> None:
        recorded = record_reports(part.reported, part.acknowledgements, now=now)
        self.applied += recorded.applied
        for why, count in recorded.ignored.items():
            self.ignored[why] = self.ignored.get(why, 0) + count

    @staticmethod
    def _put_aside(part: "_Part", error: Exception, now: datetime) -> None:
        for item in part.reported:
            log.error("report_put_aside", attempt=item.report.uid, error=str(error))
            add_dead_letter(source="inbox", error=str(error), body=str(item.report.body()), now=now)


def _seconds_of_clock() -> float:
    return clock.now().timestamp()


@dataclass(frozen=True, slots=True)
class _Part:
    """Reports to record in one transaction; what they acknowledge goes with the last of them."""

    reported: Sequence[Reported]
    acknowledgements: Sequence[Acknowledgement]

    def halves(self) -> list["_Part"]:
        """Second half first, since the last of a list is taken next."""
        middle = len(self.reported) // 2
        return [
            _Part(self.reported[middle:], self.acknowledgements),
            _Part(self.reported[:middle], ()),
        ]
