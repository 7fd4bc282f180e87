"""Rule 11: what has been kept long enough goes, in pages, until the time for it is over.

Each step has a slice of a second. If that was not enough, the rest comes in its turn between other
ticks (`ticks.retention`), so that neither a million rows nor cells wait for the other.
"""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import transaction

from controlplane import clock
from controlplane.commands.attempts.usage import count_usage
from controlplane.commands.cache.evict import evict_above, evict_old
from controlplane.commands.cache.reservations import forget_reservations
from controlplane.commands.convergence.orphan_files import sweep_orphan_files
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.retention.cache import remove_evicted
from controlplane.commands.retention.deletion import delete_expired
from controlplane.commands.retention.purge import PurgeResult, purge_deleted
from controlplane.commands.state.apply import apply
from controlplane.commands.state.cursors import save_cursor
from controlplane.commands.tenancy.stored_bytes import count_sizes
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.outbox import wakes
from controlplane.queries.convergence.deletion import RECORDS
from controlplane.queries.sql import execute

STUCK_FILES = "files_not_deleted"
_STORE = "artifact store"
_CACHE = "artifact store, cache"
_ORPHAN_FILES = "artifact store, what is of no row"

# The longest delay of other messages to the process of convergence.
_SLICE_SECONDS = 0.25
_PAGE = 500


def delete_expired_jobs(context: RuleContext) -> Mapping[str, int]:
    """Jobs that were kept for their time."""
    deleted, is_done = delete_expired(now=context.now, is_over=timer())
    _go_on_unless(is_done)
    return {"expired": deleted}


def purge(context: RuleContext) -> Mapping[str, int]:
    """Rows and files of deleted jobs."""
    # Without deleted jobs, too: files may be left of earlier ones.
    done = purge_deleted(timer(), has_jobs="deleted_jobs" in context.due)
    _report_files(context, done)
    _go_on_unless(done.is_done)
    return {"purged": done.jobs}


def evict_entries(context: RuleContext) -> Mapping[str, int]:
    """Entries of the cache that were not used for long, and evicted ones without a task."""
    is_over = timer()
    evicted = evict_old(context.policy.cache_age, now=context.now, is_over=is_over)
    removed, fault = remove_evicted(is_over)
    if fault is not None:
        text = f"files of evicted cache entries cannot be deleted: {fault}"
        alert = RaiseAlert(STUCK_FILES, _CACHE, text[:1000])
        context.memory.alerts.raise_alert(alert, now=context.now)
    else:
        context.memory.alerts.clear_alert(STUCK_FILES, _CACHE, now=context.now)
    _go_on_unless(not is_over())
    return {"cache_evicted": evicted, "cache_removed": removed}


def limit_cache(context: RuleContext) -> Mapping[str, int]:
    """The least recently used entries above the maximum size of the cache, and old reservations."""
    evicted = evict_above(context.policy.cache_bytes, now=context.now, is_over=timer())
    forgotten = forget_reservations(now=context.now, is_over=timer())
    save_cursor("cache_size", after="", now=context.now)
    return {"cache_evicted": evicted, "reservations_forgotten": forgotten}


def forget_records(context: RuleContext) -> Mapping[str, int]:
    """Audit lines, runs of ticks, samples, dead letters and alerts that are over.

    One page of each table is deleted in any case: a table that always has more must not keep the
    rows of the next ones.
    """
    deleted, is_over = 0, timer()
    parameters = {**context.parameters, "page": _PAGE}
    for record in RECORDS:
        statement = f"""
            DELETE FROM {record.table} WHERE id = ANY(ARRAY(
                SELECT id {record.old} ORDER BY {record.order} LIMIT %(page)s))
            """
        page = _delete_records(statement, parameters)
        deleted += page
        while page == _PAGE and not is_over():
            page = _delete_records(statement, parameters)
            deleted += page
    _go_on_unless(not is_over())
    return {"records_forgotten": deleted}


def _delete_records(statement: str, parameters: dict[str, Any]) -> int:
    with transaction.atomic():
        execute("SELECT set_config('cellrun.retention', 'on', true)")
        return execute(statement, parameters)


def sweep(context: RuleContext) -> Mapping[str, int]:
    """Files of attempts of which there is no row. No hurry: the next slice is of a later tick."""
    done = sweep_orphan_files(context.memory.store_walk, now=context.now, is_over=timer())
    if done.fault is not None:
        text = f"files of no row cannot be deleted: {done.fault}"
        alert = RaiseAlert(STUCK_FILES, _ORPHAN_FILES, text[:1000])
        apply(Effects(alerts=[alert]), now=context.now)
    return {"orphan_files": done.count}


def count_stored_bytes(context: RuleContext) -> Mapping[str, int]:
    """Sizes that have changed, for the totals of projects. The rest waits for the next tick."""
    return count_sizes(timer())


def count_settled(context: RuleContext) -> Mapping[str, int]:
    """Usage of settled jobs, for the totals. The rest waits for the next tick."""
    return count_usage(timer())


def timer() -> Callable[[], bool]:
    """Whether the slice that begins now is over."""
    ends = clock.monotonic() + _SLICE_SECONDS
    return lambda: clock.monotonic() >= ends


def _go_on_unless(is_done: bool) -> None:
    if not is_done:
        wakes.wake_retention()


def _report_files(context: RuleContext, done: PurgeResult) -> None:
    """Keep the alert open while files cannot be deleted; each tick tries again."""
    if done.fault is not None:
        kept = f"attempts that stay until then: {done.kept or 'none'}"
        text = f"files of deleted jobs cannot be deleted: {done.fault}; {kept}"
        alert = RaiseAlert(STUCK_FILES, _STORE, text[:1000])
        context.memory.alerts.raise_alert(alert, now=context.now)
    elif done.is_done:
        context.memory.alerts.clear_alert(STUCK_FILES, _STORE, now=context.now)
