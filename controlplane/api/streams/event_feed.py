"""Read the history once for all streams of events of this process, and keep its newest part."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError

from controlplane import clock
from controlplane.api.streams.connections import close_database
from controlplane.api.streams.event_query import EventQuery, write_position
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import text_of_reason
from controlplane.queries.events import (
    EventPage,
    load_end,
    load_events,
    load_events_of_jobs,
)
from controlplane.queries.history_ranges import HistoryPosition
from controlplane.queries.sql import Row

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.25
# Between two reads from a database that does not respond.
RETRY_SECONDS = 2.0
KEPT_EVENTS = 10_000
"""Events that are kept for streams that are not up to date; about 5 MB."""

# Streams that continue further back read at the same time; the others wait for their turn.
MAX_READERS = 4

_NAMES = MappingProxyType({int(state): state.name for state in TaskState})


@dataclass(frozen=True, slots=True)
class StreamedChange:
    """A change with its text in a stream, which all streams share."""

    id: int
    project_id: int
    job_id: int
    kind: str
    text: bytes


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The events of a range of the history, behind the row `after` up to the row `end`."""

    after: int
    end: int
    events: Sequence[StreamedChange]
    by_project: Mapping[int, Sequence[StreamedChange]] = field(default_factory=dict)
    by_job: Mapping[int, Sequence[StreamedChange]] = field(default_factory=dict)

    def select(
        self, query: EventQuery, projects: Collection[int] | None, after: int
    ) -> list[StreamedChange]:
        """Return the events behind the row `after` that a stream has.

        `projects`: those whose events it may have; None: all.
        """
        if query.jobs is not None:
            found = _merged(self.by_job, query.jobs)
        elif projects is not None:
            found = _merged(self.by_project, projects)
        else:
            found = list(self.events)
        return [
            event
            for event in found
            if event.id > after
            and query.kind in (None, event.kind)
            and (projects is None or event.project_id in projects)
        ]


def _merged(
    parts: Mapping[int, Sequence[StreamedChange]], keys: Collection[int]
) -> list[StreamedChange]:
    fewer, more = (parts, keys) if len(parts) < len(keys) else (keys, parts)
    found = [event for key in fewer if key in more for event in parts[key]]
    return sorted(found, key=lambda event: event.id)


class EventFeed:
    """The newest settled part of the history, read while any stream is open."""

    def __init__(
        self, *, poll_seconds: float = POLL_SECONDS, kept_events: int = KEPT_EVENTS
    ) -> None:
        self._poll_seconds = poll_seconds
        self._most = kept_events
        self._streams = 0
        self._reading: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self.settled: int | None = None
        """The row up to which no row of the history is missing; None: not known yet."""
        self.now: datetime | None = None
        """When the history was last read, by the clock of the database."""
        self._pages: deque[FeedPage] = deque()
        self._kept = 0
        self._changed: asyncio.Future[None] | None = None
        self._readers = asyncio.Semaphore(MAX_READERS)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Read the history during the block."""
        self._streams += 1
        if self._reading is None:
            self._begin()
            self._reading = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                reading, self._reading = self._reading, None
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading

    @property
    def changed(self) -> "asyncio.Future[None]":
        """Return what is done when `settled` changes."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def wait_until_settled(self, seconds: float) -> bool:
        """Wait until `settled` is known, at most `seconds`; return whether it is."""
        if self.settled is None:
            await asyncio.wait([self.changed], timeout=seconds)
        return self.settled is not None

    async def next_page(self, query: EventQuery, after: int) -> FeedPage | None:
        """Return the page behind the row `after`, from the database if it is not kept any more.

        None: there is none yet.
        """
        if self.settled is None or after >= self.settled:
            return None
        if not self._pages or after < self._pages[0].after:
            async with self._readers:
                return await asyncio.to_thread(_load_page, after, self.settled, query.jobs)
        return next(page for page in self._pages if page.end > after)

    async def _read(self) -> None:
        pending: HistoryPosition | None = None
        while True:
            try:
                pending = await self._advance(pending)
                await asyncio.sleep(self._poll_seconds)
            except (OperationalError, InterfaceError) as fault:
                log.warning("events_unavailable", error=str(fault))
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("events_failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _advance(self, pending: HistoryPosition | None) -> HistoryPosition:
        """Publish what is settled up to the end that is `pending`; return the one to wait for."""
        present, self.now = await asyncio.to_thread(_load_end)
        if present.settles(present):
            await self._publish(present.end)
        elif pending is None:
            return present
        elif present.settles(pending):
            await self._publish(pending.end)
        else:
            return pending
        return present

    async def _publish(self, end: int) -> None:
        if self.settled is None:
            self.settled = end
            self._notify()
        while self.settled < end:
            page = await asyncio.to_thread(_load_page, self.settled, end, None)
            self._pages.append(page)
            # A page without events takes some space, too.
            self._kept += 1 + len(page.events)
            while self._kept > self._most and len(self._pages) > 1:
                self._kept -= 1 + len(self._pages.popleft().events)
            self.settled = page.end
            self._notify()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _load_end() -> tuple[HistoryPosition, datetime]:
    try:
        return load_end(), clock.now()
    finally:
        close_database()


def _load_page(after: int, until: int, jobs: Collection[int] | None) -> FeedPage:
    try:
        now = clock.now()
        if jobs is None:
            found = load_events(after, until)
        else:
            found = load_events_of_jobs(jobs, after, until)
    finally:
        close_database()
    return _page_of(after, found, now)


def _page_of(after: int, found: EventPage, now: datetime) -> FeedPage:
    events = [_event_of(row, write_position(row.id, now)) for row in found.rows]
    return FeedPage(
        after,
        found.end,
        events,
        _grouped((event.project_id, event) for event in events),
        _grouped((event.job_id, event) for event in events),
    )


def _grouped(pairs: Iterable[tuple[int, StreamedChange]]) -> Mapping[int, Sequence[StreamedChange]]:
    found: dict[int, list[StreamedChange]] = defaultdict(list)
    for key, event in pairs:
        found[key].append(event)
    return dict(found)


def _event_of(row: Row, position: str) -> StreamedChange:
    kind = "job" if row.task_id is None else "task"
    document: dict[str, Any] = {
        "at": row.at.isoformat().replace("+00:00", "Z"),
        "job": row.job_id,
        "task": None if row.task_name is None else f"{row.job_id}/{row.task_name}",
        "task_id": row.task_id,
        "from": _NAMES.get(row.from_state),
        "to": _NAMES.get(row.to_state),
        "reason": row.reason,
        "text": text_of_reason(row.reason),
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    block = f"id: {position}\nevent: {kind}\ndata: {text}\n\n"
    return StreamedChange(row.id, row.project_id, row.job_id, kind, block.encode())
