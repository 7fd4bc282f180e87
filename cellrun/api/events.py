"""Follow changes of jobs and tasks by one stream, which continues after an interruption."""

import json
import random
import socket
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Self

import requests

from cellrun.api.paths import MOST_IDS
from cellrun.api.polling import TOO_MANY_REQUESTS, TRANSIENT
from cellrun.api.transport import ApiTransport
from cellrun.errors import ApiError, BadInput, ClientError, Unreachable

FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 10.0
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of the state of a job, or of a task of it.

    `position`: a stream can continue behind it. `kind`: job or task. `task`: `JOB/group.index`;
    None, as `task_id`, for a change of the job itself. `before`: None at the submission of a job.
    `document`: the change as the API sent it.
    """

    position: str
    kind: str
    at: str
    job: int
    task: str | None
    task_id: int | None
    before: str | None
    after: str
    reason: str
    document: Mapping[str, Any]


class EventFollower:
    """Iterates over changes; connects again and continues behind the last one.

    No change is lost, and one may arrive twice. The follower has the connections of its session,
    which no other thread may use meanwhile; `close` may be called from any thread.
    """

    def __init__(
        self,
        transport: ApiTransport,
        query: Mapping[str, str | None],
        *,
        position: str | None,
        patience_seconds: float,
        on_trouble: Callable[[ClientError], None] | None,
    ) -> None:
        self.position = position
        """Where another follower would continue; None before the first response."""
        self._transport = transport
        self._query = query
        self._patience = patience_seconds
        self._on_trouble = on_trouble
        self._answer: requests.Response | None = None
        self._blocks: Iterator[Mapping[str, str]] | None = None
        self._is_closed = False
        self._changes: Generator[StateChange, None, None] = self._read()
        self._pause = FIRST_PAUSE_SECONDS
        self._failing_since: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StateChange]:
        return self

    def __next__(self) -> StateChange:
        return next(self._changes)

    def open(self) -> Self:
        """Connect, so that all changes from now on are included. Raise Unreachable or ApiError."""
        while self._blocks is None and not self._is_closed:
            try:
                self._answer = self._connect()
                blocks = self._blocks_of(self._answer)
                # It has a position, without which a stream that breaks could not be continued.
                first = next(blocks, None)
                if first is None:
                    raise Unreachable(self._transport.url, "the stream has ended")
                self._blocks = chain([first], blocks)
            except (Unreachable, ApiError) as fault:
                self._end_response()
                if not self._is_closed:
                    self._rest(fault)
        return self

    def close(self) -> None:
        """End the stream; a thread that waits for a change stops the iteration."""
        self._is_closed = True
        answer = self._answer
        if answer is not None:
            # It wakes a thread that waits for bytes, which then closes the response.
            connection = getattr(answer.raw, "connection", None)
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        try:
            self._changes.close()
        except ValueError:
            return  # another thread iterates
        if self._answer is not None:
            self._answer.close()

    def _read(self) -> Generator[StateChange, None, None]:
        follows = self._query.get("follow") != "false"
        while not self._is_closed:
            self.open()
            if self._blocks is None:
                return
            try:
                yield from self._changes_of(self._blocks)
                if not follows:
                    return
                fault: ClientError = Unreachable(self._transport.url, "the stream has ended")
            except Unreachable as broken:
                fault = broken
            finally:
                self._end_response()
            if not self._is_closed:
                self._rest(fault)

    def _connect(self) -> requests.Response:
        headers = {"Accept": "text/event-stream, application/problem+json"}
        query = dict(self._query)
        if self.position is not None:
            headers["Last-Event-ID"] = self.position
            query.pop("since", None)
        return self._transport.open_stream("/events", query=query, headers=headers)

    def _end_response(self) -> None:
        answer, self._answer, self._blocks = self._answer, None, None
        if answer is not None:
            answer.close()

    def _blocks_of(self, answer: requests.Response) -> Iterator[Mapping[str, str]]:
        """Yield the fields of each block of the stream."""
        fields: dict[str, str] = {}
        for line in self._transport.lines_of(answer):
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            self._failing_since, self._pause = None, FIRST_PAUSE_SECONDS
            yield fields
            fields = {}

    def _changes_of(self, blocks: Iterator[Mapping[str, str]]) -> Iterator[StateChange]:
        for fields in blocks:
            position, text = fields.get("id"), fields.get("data")
            if text is not None and position is not None:
                change = _change_of(position, fields.get("event", ""), json.loads(text))
                # Before the caller has the change: it continues with the next one.
                self.position = position
                yield change
            elif position is not None:
                self.position = position

    def _rest(self, fault: Unreachable | ApiError | ClientError) -> None:
        """Wait before another try. Raise the fault if none can help, or none did for long."""
        demanded = 0.0
        if isinstance(fault, ApiError):
            if fault.status not in (*TRANSIENT, TOO_MANY_REQUESTS):
                raise fault
            demanded = fault.pause_seconds
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since > self._patience:
            raise fault
        if self._on_trouble is not None:
            self._on_trouble(fault)
        # Clients that lost the same server do not return all at once.
        pause = max(demanded, self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS)
        time.sleep(min(pause, LAST_PAUSE_SECONDS))


class EventCalls(ApiTransport):
    """The calls about events."""

    def events(
        self,
        *,
        jobs: Collection[int] = (),
        project: str | None = None,
        kind: Literal["job", "task"] | None = None,
        since: str | None = None,
        after: str | None = None,
        follow: bool = True,
        patience_seconds: float = PATIENCE_SECONDS,
        on_trouble: Callable[[ClientError], None] | None = None,
    ) -> EventFollower:
        """Return the changes of all that the token may read, or of some jobs or a project.

        They begin behind the position `after`, at the time `since` (at most 24 hours ago), or when
        the follower connects, which `EventFollower.open` does before the first change. Without
        `follow` they end with the present. After an interruption the follower connects again, for
        `patience_seconds`; `on_trouble` receives each fault. Raise BadInput for too many jobs; the
        iteration raises Unreachable, or ApiError: 410 means that changes after the position may
        have been deleted.
        """
        if len(jobs) > MOST_IDS:
            raise BadInput(f"at most {MOST_IDS:,} jobs can be followed by id: follow their project")
        query = {
            "job": ",".join(map(str, sorted(jobs))) or None,
            "project": project,
            "kind": kind,
            "since": since,
            "follow": None if follow else "false",
        }
        return EventFollower(
            self,
            query,
            position=after,
            patience_seconds=patience_seconds,
            on_trouble=on_trouble,
        )


def _change_of(position: str, kind: str, found: Mapping[str, Any]) -> StateChange:
    return StateChange(
        position,
        kind,
        found["at"],
        found["job"],
        found["task"],
        found["task_id"],
        found["from"],
        found["to"],
        found["reason"],
        found,
    )
