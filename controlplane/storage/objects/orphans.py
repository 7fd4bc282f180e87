"""Walk through the object store in the order of its keys, one listing of 1,000 keys at a time.

The order is that of places, `<area>/<first part>`. Of each attempt only the first keys of a page
are read: the next page begins after its prefix.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from controlplane.storage.interface import OrphanEntry, OrphanPage
from controlplane.storage.objects.bucket import bucket

# The number of parts of the prefix of an attempt.
_PARTS = {"artifacts": 7, "drafts": 3, "logs": 3}
_FIRST = re.compile(r"[0-9a-z]{2}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NEXT = chr(ord("/") + 1)


def walk_store(begin: str) -> Iterator[OrphanPage]:
    """Yield the content from the place `begin` on, in pages, at least one per place."""
    for area in sorted(_PARTS):
        for first in bucket().folders(area):
            place = f"{area}/{first}"
            if place >= begin and _FIRST.fullmatch(first):
                yield from _walk_place(place, _PARTS[area])
                yield OrphanPage(f"{place}/", ())


def _walk_place(place: str, parts: int) -> Iterator[OrphanPage]:
    after = ""
    while page := bucket().page(place, after):
        prefixes = [_prefix(item.key, parts) for item in page]
        found = dict.fromkeys(prefix for prefix in prefixes if prefix is not None)
        entries = [OrphanEntry(Path(prefix), UUID(prefix.rpartition("/")[2])) for prefix in found]
        yield OrphanPage(place, entries)
        after = page[-1].key if prefixes[-1] is None else prefixes[-1] + _NEXT


def _prefix(key: str, parts: int) -> str | None:
    """Return the prefix of the attempt that the object belongs to; None: it is of no attempt."""
    names = key.split("/")
    if len(names) <= parts or not _UID.fullmatch(names[parts - 1]):
        return None
    return "/".join(names[:parts])


def is_older(entry: OrphanEntry, instant: float) -> bool:
    """Return whether nothing of the entry was written since `instant` (s since 1970)."""
    return all(item.changed_at < instant for item in bucket().walk(str(entry.path)))


def put_away(entry: OrphanEntry) -> None:
    """Remove the entry. Idempotent."""
    bucket().delete_all(str(entry.path))
