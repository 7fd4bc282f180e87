"""Remove evicted entries of the cache, with the files of deleted attempts."""

from collections.abc import Callable

from django.db import transaction

from controlplane.commands.tenancy.stored_bytes import forget_attempts
from controlplane.queries.cache.retention import list_removable
from controlplane.queries.sql import execute
from controlplane.storage.current import current_store

PAGE = 500


def remove_evicted(is_over: Callable[[], bool]) -> tuple[int, OSError | None]:
    """Remove evicted entries that no task refers to; return how many, and why files remained.

    Files of an attempt that still exists are removed with its job.
    """
    removed, fault, after = 0, None, 0
    while not is_over() and (found := list_removable(after, PAGE)):
        after = found[-1].entry_id
        gone = {item.attempt_uid: item.prefix for item in found if item.is_deleted}
        failed = current_store().discard_attempts(gone)
        fault = next(iter(failed.values()), fault)
        done = [item.entry_id for item in found if item.attempt_uid not in failed]
        with transaction.atomic():
            forget_attempts(uid for uid in gone if uid not in failed)
            removed += execute("DELETE FROM controlplane_cacheentry WHERE id = ANY(%s)", [done])
    return removed, fault
