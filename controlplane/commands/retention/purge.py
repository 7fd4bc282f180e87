"""Remove files and rows of deleted jobs, many jobs at once, in pages with short transactions.

Files go first, outside any transaction: only the rows show which job owns them, so a process that
dies in between loses none. Then rows go, the rows that lead to others last, and jobs when they have
no rows left. The next tick continues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from controlplane import clock
from controlplane.commands.attempts.usage import count_usage_of
from controlplane.commands.state.cursors import save_cursor
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.commands.tenancy.stored_bytes import forget_attempts, forget_inputs
from controlplane.queries.attempts.artifacts import find_prefixes_of_tasks
from controlplane.queries.cache.entries import find_owned
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.deletion import list_deleted_jobs
from controlplane.queries.sql import execute, rows
from controlplane.storage.current import current_store

# Jobs, tasks or attempts of one transaction.
PAGE = 500
# A task with one attempt has some five rows of history.
_HISTORY_PAGE = 5 * PAGE

_CURSOR = "deleted_jobs"


@dataclass(slots=True)
class PurgeResult:
    """The result of a purge. `is_done`: False if time ran out. `fault`: why the files, and thus the
    rows, of `kept` attempts could not be deleted.
    """

    jobs: int = 0
    is_done: bool = True
    kept: int = 0
    fault: OSError | None = None


def purge_deleted(is_over: Callable[[], bool], *, has_jobs: bool = True) -> PurgeResult:
    """Remove rows and files of deleted jobs until `is_over()`.

    `has_jobs`: False if there are only files of jobs whose rows are gone.
    """
    done = PurgeResult()
    if has_jobs:
        done.is_done = _purge_pages(done, is_over)
    left = current_store().delete_discarded(is_over)
    done.is_done &= not left.anything or left.fault is not None
    done.fault = done.fault or left.fault
    return done


def _purge_pages(done: PurgeResult, is_over: Callable[[], bool]) -> bool:
    """Purge page after page; return whether there was time for all.

    With several pages the walk continues at a cursor, so that jobs at the front whose files cannot
    be deleted do not take all the time. A single page, or an idle tick, reads no cursor.
    """
    after = began = 0
    is_long: bool | None = None
    while not is_over():
        page = list_deleted_jobs(after, PAGE)
        if is_long is None:
            is_long = len(page) == PAGE
            after = began = int(load_cursor(_CURSOR).after or 0) if is_long else 0
            if began:
                continue
        if page:
            if not _purge_jobs(page, done, is_over):
                return False
            after = page[-1]
        elif began:
            after = began = 0  # continue at the front
            continue
        if is_long:
            save_cursor(_CURSOR, after=str(after) if page else "", now=clock.now())
        if not page:
            return True
    return False


def _purge_jobs(job_ids: Sequence[int], done: PurgeResult, is_over: Callable[[], bool]) -> bool:
    """Purge these jobs; return whether there was time for all that is possible now."""
    present = set(job_ids)
    if not count_usage_of(job_ids, is_over):
        return False
    _unlink(job_ids)
    while present and not is_over():
        tasks = _list_tasks(present)
        attempts = find_prefixes_of_tasks(tasks, PAGE)
        prefixes = {uid: prefix for uid, (_, prefix) in attempts.items()}
        failed = _discard(prefixes)
        if failed:
            done.kept += len(failed)
            done.fault = next(iter(failed.values()))
            present -= {attempts[uid][0] for uid in failed}
        page = _PurgePage(tasks, [uid for uid in attempts if uid not in failed], len(tasks) < PAGE)
        batches = for_each_batch(sorted(present), page.remove, what="deletion")
        gone = {job_id for batch in batches for job_id in batch.gone}
        # The next tick retries the job that failed.
        present &= {job_id for batch in batches for job_id in batch.job_ids}
        present -= gone
        done.jobs += len(gone)
        if not any(batch.removed for batch in batches):
            break
    return not is_over() or not present


def _discard(prefixes: Mapping[UUID, str]) -> dict[UUID, OSError]:
    """Discard the files of attempts, but not artifacts that belong to entries of the cache.

    Return the errors by uid.
    """
    store, owned = current_store(), find_owned(prefixes)
    failed = store.discard_attempts({uid: at for uid, at in prefixes.items() if uid not in owned})
    for uid in owned:
        try:
            store.remove_logs(uid)
        except OSError as error:
            failed[uid] = error
    return failed


def _list_tasks(job_ids: set[int]) -> list[int]:
    found = rows(
        """
        SELECT t.id FROM unnest(%s::bigint[]) AS j (id),
        LATERAL (SELECT id FROM controlplane_task WHERE job_id = j.id ORDER BY id LIMIT %s) t
        LIMIT %s
        """,
        [sorted(job_ids), PAGE, PAGE],
    )
    return [task_id for (task_id,) in found]


# By job, so that each is an index scan however many rows the table has.
_BY_JOB = """
    DELETE FROM controlplane_{table} WHERE id = ANY(ARRAY(
        SELECT x.id FROM unnest(%(jobs)s::bigint[]) AS j (id),
        LATERAL (SELECT x.id FROM controlplane_{table} x
                 WHERE x.job_id = j.id{which} LIMIT %({page})s) x
        LIMIT %({page})s))
    """
_WITHOUT_TRIES = " AND NOT EXISTS (SELECT 1 FROM controlplane_delivery WHERE callback_id = x.id)"
_PAGES = (
    """
    DELETE FROM controlplane_delivery WHERE id = ANY(ARRAY(
        SELECT d.id FROM unnest(%(jobs)s::bigint[]) AS j (id)
        JOIN controlplane_callback k ON k.job_id = j.id,
        LATERAL (SELECT id FROM controlplane_delivery WHERE callback_id = k.id LIMIT %(page)s) d
        LIMIT %(page)s))
    """,
    _BY_JOB.format(table="callback", which=_WITHOUT_TRIES, page="page"),
    _BY_JOB.format(table="transition", which=" ORDER BY x.id", page="history_page"),
    """
    DELETE FROM controlplane_attempt
    WHERE uid = ANY(%(uids)s::uuid[]) AND job_id = ANY(%(jobs)s::bigint[])
    """,
    """
    DELETE FROM controlplane_task t
    WHERE t.id = ANY(%(tasks)s::bigint[]) AND t.job_id = ANY(%(jobs)s::bigint[])
      AND NOT EXISTS (SELECT 1 FROM controlplane_attempt a WHERE a.task_id = t.id)
    """,
)

# Rows that go with the job itself; a submission bounds their number.
_LAST_PAGES = tuple(
    _BY_JOB.format(table=table, which="", page="page")
    for table in ("taskgroup", "jobdependency", "hold")
)

_LIST_EMPTY = """
SELECT j.id FROM unnest(%s::bigint[]) AS j (id)
WHERE NOT EXISTS (SELECT 1 FROM controlplane_task WHERE job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM controlplane_transition WHERE job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM controlplane_callback WHERE job_id = j.id)
"""

_DELETE_JOBS = """
DELETE FROM controlplane_job j WHERE j.id = ANY(%s::bigint[])
  AND NOT EXISTS (SELECT 1 FROM controlplane_taskgroup WHERE job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM controlplane_jobdependency WHERE job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM controlplane_hold WHERE job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM controlplane_job c WHERE c.parent_id = j.id OR c.retry_of_id = j.id)
RETURNING j.id
"""


@dataclass(frozen=True, slots=True)
class _BatchResult:
    """The result of one transaction: the number of removed rows, and the jobs removed with them."""

    job_ids: Sequence[int]
    removed: int
    gone: Sequence[int]


@dataclass(frozen=True, slots=True)
class _PurgePage:
    """A page of rows of some jobs. `has_all`: the page contains all their tasks."""

    tasks: list[int]
    uids: list[UUID]
    has_all: bool

    def remove(self, job_ids: Sequence[int]) -> _BatchResult:
        """Remove these jobs' rows of the page, in the caller's transaction."""
        jobs = list(job_ids)
        execute(
            "SELECT id FROM controlplane_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE",
            [jobs],
        )
        parameters = {
            "jobs": jobs,
            "tasks": self.tasks,
            "uids": self.uids,
            "page": PAGE,
            "history_page": _HISTORY_PAGE,
        }
        forget_attempts(self.uids, keep_cached=True)
        removed = sum(execute(statement, parameters) for statement in _PAGES)
        gone: list[int] = []
        if self.has_all:
            empty = [job_id for (job_id,) in rows(_LIST_EMPTY, [jobs])]
            parameters["jobs"] = empty
            removed += sum(execute(statement, parameters) for statement in _LAST_PAGES if empty)
            gone = [job_id for (job_id,) in rows(_DELETE_JOBS, [empty])] if empty else []
            forget_inputs(gone)
        return _BatchResult(jobs, removed + len(gone), gone)


# Children and retries that are not deleted.
_UNLINK = """
WITH held AS MATERIALIZED (
    SELECT id FROM controlplane_job
    WHERE parent_id = ANY(%(jobs)s::bigint[]) OR retry_of_id = ANY(%(jobs)s::bigint[])
    ORDER BY id LIMIT %(page)s FOR NO KEY UPDATE
)
UPDATE controlplane_job j
SET parent_id = CASE WHEN j.parent_id = ANY(%(jobs)s::bigint[]) THEN NULL ELSE j.parent_id END,
    retry_of_id = CASE WHEN j.retry_of_id = ANY(%(jobs)s::bigint[]) THEN NULL ELSE j.retry_of_id END
FROM held WHERE j.id = held.id
"""


def _unlink(job_ids: Sequence[int]) -> None:
    """Clear the links of remaining children and retries to the jobs, without locking the jobs.

    No link is added meanwhile: the jobs are deleted.
    """
    parameters = {"jobs": list(job_ids), "page": PAGE}
    while run_in_transaction(lambda: execute(_UNLINK, parameters)) == PAGE:
        pass
