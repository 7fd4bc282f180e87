"""Resolve names in threads, so that hanging lookups delay only their own requests."""

import asyncio
import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Found = list[tuple[Any, ...]] | Exception


@dataclass(slots=True, eq=False)
class LookupCaller:
    """A request and its owner. `is_queued`: the lookup of its name has not begun."""

    owner_id: int
    is_queued: bool = False


@dataclass(slots=True, eq=False)
class _Lookup:
    host: str
    family: socket.AddressFamily
    waiting: dict[asyncio.Future[Found], LookupCaller] = field(default_factory=dict)

    @property
    def question(self) -> tuple[str, int]:
        return self.host.lower(), self.family


class Resolver:
    """Resolves names within one event loop; requests for one name share a lookup.

    The system's resolver cannot be interrupted: an abandoned lookup continues and counts. At most
    `per_owner` lookups of an owner, and `at_once` in all, are in progress, but one of each owner is
    always allowed. Others are queued, and dropped when no request waits for them.
    """

    def __init__(self, *, at_once: int, per_owner: int) -> None:
        self._at_once, self._per_owner = at_once, per_owner
        self._queued: dict[tuple[str, int], _Lookup] = {}
        self._begun: dict[tuple[str, int], _Lookup] = {}
        self._of_owner: Counter[int] = Counter()

    async def find(
        self, caller: LookupCaller, host: str, family: socket.AddressFamily
    ) -> list[tuple[Any, ...]]:
        """Return the result of getaddrinfo for `host`. Raise OSError, ValueError."""
        lookup = _Lookup(host, family)
        question = lookup.question
        if question in self._begun:
            lookup = self._begun[question]
        else:
            lookup = self._queued.setdefault(question, lookup)
            caller.is_queued = True
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        lookup.waiting[answer] = caller
        self._begin()
        try:
            found = await answer
        finally:
            del lookup.waiting[answer]
            if not lookup.waiting and self._queued.get(question) is lookup:
                del self._queued[question]
        if isinstance(found, Exception):
            raise found
        return found

    def _begin(self) -> None:
        """Begin queued lookups within the limits."""
        while (chosen := self._choose()) is not None:
            lookup, owner_id = chosen
            del self._queued[lookup.question]
            self._begun[lookup.question] = lookup
            self._of_owner[owner_id] += 1
            loop = asyncio.get_running_loop()
            # A daemon thread: the end of the process must not wait for name servers.
            thread = threading.Thread(
                target=self._resolve_name,
                args=(loop, lookup, owner_id),
                name="resolve",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                fault = OSError("too many threads")
                loop.call_soon(self._end, lookup, owner_id, fault)
                continue
            for caller in lookup.waiting.values():
                caller.is_queued = False

    def _choose(self) -> tuple[_Lookup, int] | None:
        """Return the oldest queued lookup of the owner with the fewest in progress, and its id."""
        is_full = self._of_owner.total() >= self._at_once
        most = 1 if is_full else self._per_owner
        chosen = None
        for lookup in self._queued.values():
            for caller in lookup.waiting.values():
                if self._of_owner[caller.owner_id] < most:
                    most = self._of_owner[caller.owner_id]
                    chosen = lookup, caller.owner_id
        return chosen

    def _resolve_name(
        self, loop: asyncio.AbstractEventLoop, lookup: _Lookup, owner_id: int
    ) -> None:
        found: Found
        try:
            found = list(
                socket.getaddrinfo(
                    lookup.host,
                    None,
                    lookup.family,
                    socket.SOCK_STREAM,
                    flags=socket.AI_ADDRCONFIG,
                )
            )
        except Exception as error:  # pass the error to the requests
            found = error
        with suppress(RuntimeError):  # all requests were cancelled
            loop.call_soon_threadsafe(self._end, lookup, owner_id, found)

    def _end(self, lookup: _Lookup, owner_id: int, found: Found) -> None:
        del self._begun[lookup.question]
        self._of_owner[owner_id] -= 1
        if not self._of_owner[owner_id]:
            del self._of_owner[owner_id]
        for answer in lookup.waiting:
            if not answer.done():
                answer.set_result(found)
        self._begin()
