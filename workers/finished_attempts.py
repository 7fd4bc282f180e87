"""The uids of attempts that a cell has finished, which it must not run again for a day.

A busy cell finishes a million attempts a day. The newest have entries of their own; older ones are
packed into digests of eight bytes. Two uids with one digest are no danger: the cell refuses the
second, and its task is placed again.
"""

import base64
import sys
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

# Entries of their own, in each cell.
MAX_RECENT = 64
# Packed uids are forgotten together with all others of the same hour.
HOUR_SECONDS = 3600
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """An attempt that ended or was refused; its uid is known `until` then (seconds since 1970)."""

    until: float
    never_created: bool = False


@dataclass(frozen=True, slots=True)
class Hour:
    """What packed uids have in common: the hour in which they may be forgotten, and the flag."""

    number: int
    never_created: bool

    @property
    def until(self) -> float:
        """Return the end of the hour, in seconds since 1970."""
        return float((self.number + 1) * HOUR_SECONDS)


@dataclass(slots=True)
class FinishedAttempts:
    """The finished attempts of a cell by uid.

    `pages`: sorted digests; each page of an hour is at least twice as large as the next one.
    """

    recent: dict[str, FinishedAttempt] = field(default_factory=dict)
    pages: "dict[Hour, list[array[int]]]" = field(default_factory=dict)

    def get(self, uid: str) -> FinishedAttempt | None:
        """Return what is known of a uid; None: nothing.

        Something was created for a uid with both flags.
        """
        found = self.recent.get(uid)
        if found is not None or not self.pages:
            return found
        digest = _digest(uid)
        for hour, pages in self.pages.items():
            if any(_has(page, digest) for page in pages):
                found = FinishedAttempt(hour.until, hour.never_created)
                if not hour.never_created:
                    break
        return found

    def __contains__(self, uid: str) -> bool:
        return self.get(uid) is not None

    def add(self, uid: str, finished: FinishedAttempt) -> None:
        """Add an attempt, or replace what is known of a recent one."""
        self.recent[uid] = finished
        if len(self.recent) > MAX_RECENT:
            self._pack()

    def add_page(self, number: int, never_created: bool, digests: str) -> None:
        """Add a page from an entry of the journal."""
        self._add_page(Hour(number, never_created), _decoded(digests))

    def forget(self, now: float) -> None:
        """Forget the uids that need not be known any more."""
        for uid in [uid for uid, it in self.recent.items() if it.until < now]:
            del self.recent[uid]
        for hour in [hour for hour in self.pages if hour.until < now]:
            del self.pages[hour]

    def clear(self) -> None:
        """Forget all."""
        self.recent.clear()
        self.pages.clear()

    def entries(self) -> Iterator[list[Any]]:
        """Yield entries of the journal that restore it."""
        for hour, pages in self.pages.items():
            for page in pages:
                yield ["known", hour.number, hour.never_created, _encoded(page)]
        for uid, it in self.recent.items():
            yield ["done", uid, it.until, *([True] if it.never_created else [])]

    def _pack(self) -> None:
        """Move all recent attempts to the pages of their hours."""
        found: dict[Hour, list[int]] = defaultdict(list)
        for uid, it in self.recent.items():
            found[Hour(int(it.until // HOUR_SECONDS), it.never_created)].append(_digest(uid))
        self.recent.clear()
        for hour, digests in found.items():
            self._add_page(hour, array("Q", sorted(digests)))

    def _add_page(self, hour: Hour, page: "array[int]") -> None:
        pages = self.pages.setdefault(hour, [])
        while pages and len(pages[-1]) < 2 * len(page):
            page = array("Q", sorted({*pages.pop(), *page}))
        pages.append(page)


def _has(page: "array[int]", digest: int) -> bool:
    place = bisect_left(page, digest)
    return place < len(page) and page[place] == digest


def _digest(uid: str) -> int:
    return int.from_bytes(blake2b(uid.encode(), digest_size=_DIGEST_BYTES).digest(), "big")


def _encoded(digests: "array[int]") -> str:
    return base64.b64encode(_little_endian(digests).tobytes()).decode()


def _decoded(text: str) -> "array[int]":
    digests = array("Q")
    digests.frombytes(base64.b64decode(text, validate=True))
    return _little_endian(digests)


def _little_endian(digests: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return digests
    swapped = array("Q", digests)
    swapped.byteswap()
    return swapped
