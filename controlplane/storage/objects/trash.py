"""Discard attempts with one request for many, and delete their objects in steps.

discarded/<random>      a JSON list of the attempts whose objects are to be deleted
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

from controlplane.storage.interface import (
    StoreUnavailable,
    TrashRemainder,
    drafts_of,
    logs_of,
)
from controlplane.storage.objects.bucket import bucket

_FOLDER = "discarded"
# An attempt takes some three to six requests.
_AT_ONCE = 16
# Each takes the seconds of a request's retries.
_MAX_FAULTS = 3


def discard_attempts(prefixes: Mapping[UUID, str]) -> dict[UUID, OSError]:
    """Record that artifacts and output of attempts are to be deleted; return the errors by uid."""
    entries = [[str(uid), prefix] for uid, prefix in prefixes.items()]
    try:
        if entries:
            bucket().put(f"{_FOLDER}/{uuid4().hex}", json.dumps(entries).encode())
    except StoreUnavailable as error:
        return dict.fromkeys(prefixes, error)
    return {}


def delete_discarded(is_over: Callable[[], bool]) -> TrashRemainder:
    """Delete discarded content until `is_over` returns true; return what remains."""
    faults: list[OSError] = []
    try:
        lists = bucket().page(_FOLDER)
    except StoreUnavailable as error:
        return TrashRemainder(True, error)
    for item in lists:
        try:
            if is_over() or not _delete(item.key, is_over):
                return TrashRemainder(True, *faults[-1:])
        except StoreUnavailable as error:  # others can be deleted, unless the store is away
            faults.append(error)
            if len(faults) == _MAX_FAULTS:
                break
    return TrashRemainder(bool(faults), *faults[-1:])


def _delete(key: str, is_over: Callable[[], bool]) -> bool:
    """Delete what a list names, then the list; return whether there was time for all.

    If not, the list is replaced by its rest.
    """
    content = bucket().read(key)
    entries = json.loads(content) if content is not None else []
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        while entries:
            list(threads.map(_delete_attempt, entries[:_AT_ONCE]))
            entries = entries[_AT_ONCE:]
            if entries and is_over():
                bucket().put(key, json.dumps(entries).encode())
                return False
    bucket().delete([key])
    return True


def _delete_attempt(entry: tuple[str, str]) -> None:
    uid, prefix = UUID(entry[0]), entry[1]
    for folder in (f"artifacts/{prefix}", drafts_of(uid), logs_of(uid)):
        bucket().delete_all(folder)
