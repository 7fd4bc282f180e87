"""The uids of attempts that a cell has finished, which it must not run again for a day.

A busy cell finishes a million attempts a day. The newest have entries of their own; older ones are
packed into pages of eight bytes each, a digest of the uid. Two uids with one digest are no danger:
the cell refuses the second, and its task is placed again.
"""

import base64
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

# Entries of their own, in each cell.
MAX_RECENT = 64
# A packed uid stays known for up to this much longer, until the last one of its page.
PAGE_SECONDS = 3600.0
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """An attempt that ended or was refused; its uid is known `until` then (seconds since 1970)."""

    until: float
    never_created: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Digests of uids in ascending order; all are known until `last`, and the first until then."""

    first: float
    last: float
    never_created: bool
    digests: "array[int]"

    def has(self, digest: int) -> bool:
        """Return whether a uid with this digest is in the page."""
        place = bisect_left(self.digests, digest)
        return place < len(self.digests) and self.digests[place] == digest

    def may_join(self, older: "Page") -> bool:
        """Return whether the two should be one page: of similar size and time."""
        return (
            len(older.digests) < 2 * len(self.digests)
            and max(self.last, older.last) - min(self.first, older.first) <= PAGE_SECONDS
            and self.never_created == older.never_created
        )

    def joined(self, older: "Page") -> "Page":
        """Return one page with the uids of both."""
        return Page(
            min(self.first, older.first),
            max(self.last, older.last),
            self.never_created,
            array("Q", sorted([*older.digests, *self.digests])),
        )

    def body(self) -> list[Any]:
        """Return it for an entry of the journal."""
        return [self.first, self.last, self.never_created, _encoded(self.digests)]


@dataclass(slots=True)
class FinishedAttempts:
    """The finished attempts of a cell by uid."""

    recent: dict[str, FinishedAttempt] = field(default_factory=dict)
    pages: list[Page] = field(default_factory=list)

    def get(self, uid: str) -> FinishedAttempt | None:
        """Return what is known of a uid; None: nothing."""
        found = self.recent.get(uid)
        if found is None and self.pages:
            digest = _digest(uid)
            found = next(
                (FinishedAttempt(it.last, it.never_created) for it in self.pages if it.has(digest)),
                None,
            )
        return found

    def __contains__(self, uid: str) -> bool:
        return self.get(uid) is not None

    def __len__(self) -> int:
        return len(self.recent) + sum(len(page.digests) for page in self.pages)

    def add(self, uid: str, finished: FinishedAttempt) -> None:
        """Add an attempt, or replace what is known of it."""
        self.recent[uid] = finished
        if len(self.recent) > MAX_RECENT:
            self._pack()

    def add_page(self, body: list[Any]) -> None:
        """Add a page from an entry of the journal."""
        first, last, never_created, digests = body
        self.pages.append(Page(first, last, never_created, _decoded(digests)))

    def forget(self, now: float) -> None:
        """Forget the uids that need not be known any more."""
        for uid in [uid for uid, it in self.recent.items() if it.until < now]:
            del self.recent[uid]
        if any(page.last < now for page in self.pages):
            self.pages = [page for page in self.pages if page.last >= now]

    def clear(self) -> None:
        """Forget all."""
        self.recent.clear()
        self.pages.clear()

    def entries(self) -> Iterator[list[Any]]:
        """Yield entries of the journal that restore it."""
        for page in self.pages:
            yield ["known", *page.body()]
        for uid, it in self.recent.items():
            yield ["done", uid, it.until, *([True] if it.never_created else [])]

    def _pack(self) -> None:
        """Replace the entries of their own by pages."""
        for never_created in (False, True):
            found = [
                (it.until, _digest(uid))
                for uid, it in self.recent.items()
                if it.never_created == never_created
            ]
            if found:
                digests = array("Q", sorted(digest for _, digest in found))
                page = Page(min(found)[0], max(found)[0], never_created, digests)
                while older := next(filter(page.may_join, reversed(self.pages)), None):
                    self.pages.remove(older)
                    page = page.joined(older)
                self.pages.append(page)
        self.recent.clear()


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
