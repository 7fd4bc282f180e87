"""Remove evicted entries of the cache, with the files of deleted attempts."""

from collections.abc import Callable

from controlplane.commands.attempts.artifacts import forget_attempts
from controlplane.queries.cache.retention import list_removable
from controlplane.queries.sql import execute
from controlplane.storage.manifests import remove_manifest

PAGE = 500


def remove_evicted(is_over: Callable[[], bool]) -> tuple[int, OSError | None]:
    """Remove evicted entries that no task refers to; return how many, and why files remained.

    Files of an attempt that still exists are removed with its job.
    """
    removed, fault, after = 0, None, 0
    while not is_over() and (found := list_removable(after, PAGE)):
        after = found[-1].entry_id
        gone = {item.attempt_uid: item.prefix for item in found if item.is_deleted}
        failed = forget_attempts(gone)
        for item in found:
            try:
                remove_manifest(item.attempt_uid)
            except OSError as error:
                failed[item.attempt_uid] = error
        fault = next(iter(failed.values()), fault)
        done = [item.entry_id for item in found if item.attempt_uid not in failed]
        removed += execute("DELETE FROM controlplane_cacheentry WHERE id = ANY(%s)", [done])
    return removed, fault
