"""Count the jobs of a bulk operation, and find them in pages that the caller may change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from django.db.models import QuerySet

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.domain.jobs.bulk import BulkAction, BulkFilter, BulkPlace
from controlplane.domain.roles import Access, Permission, Place, may
from controlplane.domain.scopes import split_project_name
from controlplane.models import BulkOperation
from controlplane.queries.jobs.filters import JobFilter, conditions_of
from controlplane.queries.sql import named_rows, rows, scalar
from controlplane.queries.tenancy.access import find_project_place, load_access, load_admin_access
from controlplane.queries.tenancy.accounts import find_token_credential

MAX_COUNTED = 10_000
"""Jobs that a preview reads, the newest ones."""

SAMPLE = 10
"""Jobs that a preview names."""

SCANNED = 5_000
"""Jobs by id among which one page is found, so that a filter of few jobs is bounded too."""

# In addition to the states. A job that was processed does not match again.
_APPLIES = MappingProxyType(
    {
        BulkAction.CANCEL: "j.ending_as IS NULL",
        BulkAction.HOLD: "j.ending_as IS NULL AND NOT j.is_held",
        BulkAction.RELEASE: "j.is_held",
        # A job with a retry is retried by a retry of that one.
        BulkAction.RETRY: "NOT EXISTS (SELECT FROM controlplane_job r"
        " WHERE r.retry_of_id = j.id AND r.deleted_at IS NULL)",
        # The job of a one-off task is deleted by the claim of the task.
        BulkAction.DELETE: "NOT j.is_one_off",
    }
)


_HOLDS_NOTHING = """
    NOT EXISTS (SELECT FROM controlplane_attempt a
                WHERE a.job_id = j.id AND a.released_at IS NULL)
    """


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """The jobs that an operation would process, of `read` ones that were compared with the filter.

    `is_whole`: `count` includes all of them.
    """

    count: int
    read: int
    is_whole: bool
    sample: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class BulkJob:
    """A job to process, and its place."""

    job_id: int
    place: Place


@dataclass(frozen=True, slots=True)
class BulkPage:
    """The next jobs. `reached`: the job up to which the page is complete; `is_last`: of its round.

    `is_first`: whether the round is the first of two.
    """

    jobs: Sequence[BulkJob]
    reached: int
    is_last: bool
    is_first: bool


def preview_bulk(action: BulkAction, wanted: BulkFilter, *, access: Access) -> BulkPreview:
    """Count the jobs that the caller may change, with the newest ones as a sample.

    Raise NotFound for a project that the caller may not read.
    """
    found = _job_filter(action, wanted, access)
    # First what indexes find, so that the number of rows is bounded whatever else is wanted.
    narrow, narrow_values = conditions_of(replace(found, pool=None, labels={}))
    rest, rest_values = conditions_of(JobFilter(pool=found.pool, labels=found.labels))
    if access.managed is not None:
        narrow.append("(j.project_id = ANY(%s) OR j.owner_id = %s)")
        narrow_values += [sorted(access.managed), access.user_id]
    conditions = " AND ".join(["true", *rest, _APPLIES[action]])
    owners = named_rows(
        f"""
        WITH newest AS MATERIALIZED (
            SELECT j.id, j.project_id, j.owner_id, j.pool_id, j.labels, j.ending_as, j.is_held,
                   j.is_one_off
            FROM controlplane_job j
            WHERE {" AND ".join([*narrow, "j.deleted_at IS NULL"])}
            ORDER BY j.id DESC LIMIT {MAX_COUNTED}
        )
        SELECT found.*, (SELECT count(*) FROM newest) AS read
        FROM (VALUES (1)) AS one LEFT JOIN (
            SELECT j.project_id, p.domain_id, j.owner_id, count(*) AS jobs,
                   (array_agg(j.id ORDER BY j.id DESC))[1:{SAMPLE}] AS newest
            FROM newest j JOIN controlplane_project p ON p.id = j.project_id
            WHERE {conditions} GROUP BY j.project_id, p.domain_id, j.owner_id
        ) found ON true
        """,
        [*narrow_values, *rest_values],
    )
    permitted = [row for row in owners if row.jobs and _may_change(access, row)]
    newest = sorted((job_id for row in permitted for job_id in row.newest), reverse=True)
    return BulkPreview(
        count=sum(row.jobs for row in permitted),
        read=owners[0].read,
        is_whole=owners[0].read < MAX_COUNTED,
        sample=_load_sample(newest[:SAMPLE]),
    )


def find_page(operation: BulkOperation, access: Access, limit: int) -> BulkPage:
    """Return at most `limit` jobs that the operation processes next, by id."""
    action, wanted = BulkAction(operation.action), BulkFilter.read(operation.filter)
    last = operation.last_job_id
    place = BulkPlace.read(operation.after_job_id, last)
    try:
        found = _job_filter(action, wanted, access)
    except NotFound:  # the user has lost the role on the project
        return BulkPage((), last, is_last=True, is_first=place.is_first)
    after = place.job_id
    reached = scalar(
        """
        SELECT max(id) FROM (SELECT id FROM controlplane_job
                             WHERE id > %s AND id <= %s ORDER BY id LIMIT %s) AS page
        """,
        [after, last, SCANNED],
    )
    if reached is None:
        return BulkPage((), last, is_last=True, is_first=place.is_first)
    conditions, values = conditions_of(found)
    conditions += [_HOLDS_NOTHING] if place.is_first else []
    conditions += [_APPLIES[action], "j.deleted_at IS NULL", "j.id > %s", "j.id <= %s"]
    jobs = named_rows(
        f"""
        SELECT j.id, j.project_id, p.domain_id, j.owner_id FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id
        WHERE {" AND ".join(conditions)} ORDER BY j.id LIMIT %s
        """,
        [*values, after, reached, limit],
    )
    if len(jobs) == limit:
        reached = jobs[-1].id
    permitted = [BulkJob(row.id, _place(row)) for row in jobs if _may_change(access, row)]
    return BulkPage(permitted, reached, is_last=False, is_first=place.is_first)


def load_actor(operation: BulkOperation, *, now: datetime) -> Access | None:
    """Return the present roles of the token or user that started the operation; None: invalid."""
    if operation.token_id is None:
        return load_admin_access(operation.user)
    credential = find_token_credential(operation.token_id, now=now)
    return None if credential is None else load_access(credential)


def list_running() -> list[int]:
    """Return the running operations, first those that have waited longest for a page."""
    running = BulkOperation.objects.filter(ended_at=None).order_by("turn_at", "pk")
    return list(running.values_list("pk", flat=True))


def find_newest_job() -> int:
    """Return the id of the newest job; 0 without any."""
    return int(scalar("SELECT max(id) FROM controlplane_job") or 0)


def list_operations(
    access: Access, token_id: int | None, *, before: int | None = None, limit: int
) -> list[dict[str, Any]]:
    """Return the operations that the caller may see, newest first."""
    found = _visible(access, token_id)
    if before is not None:
        found = found.filter(pk__lt=before)
    return [_document(operation) for operation in found.order_by("-pk")[:limit]]


def get_operation(access: Access, token_id: int | None, operation_id: int) -> dict[str, Any]:
    """Return one operation that the caller may see. Raise NotFound."""
    found = _visible(access, token_id).filter(pk=operation_id).first()
    if found is None:
        raise NotFound(f"there is no bulk operation {operation_id}")
    return _document(found)


def _visible(access: Access, token_id: int | None) -> QuerySet[BulkOperation]:
    """Auditors and operators see all operations; a limited token sees those that it started."""
    found = BulkOperation.objects.select_related("user")
    if access.may_audit:
        return found
    found = found.filter(user_id=access.user_id)
    return found if access.bound_to is None else found.filter(token_id=token_id)


def _document(operation: BulkOperation) -> dict[str, Any]:
    return {
        "id": operation.pk,
        "action": operation.action,
        "filter": operation.filter,
        "reason": operation.reason,
        "by": operation.user.get_username(),
        "state": operation.state,
        "created_at": operation.created_at,
        "ended_at": operation.ended_at,
        "ended_because": operation.ended_because,
        "expected": operation.expected,
        "done": operation.done,
        "refused": operation.refused,
        "refusals": operation.refusals,
    }


def _job_filter(action: BulkAction, wanted: BulkFilter, access: Access) -> JobFilter:
    """Return the filter of jobs within what the caller may read. Raise NotFound."""
    readable = access.readable
    if wanted.project is not None:
        place = find_project_place(*split_project_name(wanted.project))
        if not may(access, Permission.READ, place):
            raise NotFound(f"there is no project {'/'.join(split_project_name(wanted.project))}")
        readable = [place.project_id]
    return JobFilter(
        readable,
        wanted.states_for(action),
        wanted.pool,
        wanted.name,
        labels=dict(wanted.labels),
    )


def _may_change(access: Access, row: Any) -> bool:
    return may(access, Permission.CHANGE, _place(row))


def _place(row: Any) -> Place:
    return Place(row.project_id, row.domain_id, row.owner_id)


def _load_sample(job_ids: Sequence[int]) -> list[dict[str, Any]]:
    found = rows(
        """
        SELECT j.id, j.name, j.state, d.name || '/' || p.name FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id WHERE j.id = ANY(%s) ORDER BY j.id DESC
        """,
        [list(job_ids)],
    )
    return [
        {"id": job_id, "name": name, "state": TaskState(state).name, "project": project}
        for job_id, name, state, project in found
    ]
