"""Find the subjects of alerts and the work that they affect, by indexes and in bounded ranges."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.db.models import Q

from controlplane.contract.states import TaskState as S
from controlplane.domain.alerts import AlertSubject, SubjectKind
from controlplane.domain.errors import NotFound
from controlplane.models import (
    Alert,
    Attempt,
    Cell,
    ImageFailure,
    Job,
    Pool,
    Shape,
    Task,
    TaskGroup,
)
from controlplane.queries.sql import rows

_SEARCHED_ATTEMPTS = 10_000


def list_alerts(
    *,
    is_open: bool | None = None,
    kind: str | None = None,
    subject: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[Alert]:
    """Return alerts, newest first, older than `before`."""
    conditions = {"kind": kind, "subject": subject, "pk__lt": before}
    found = Alert.objects.filter(**{name: it for name, it in conditions.items() if it is not None})
    if is_open is not None:
        found = found.filter(cleared_at__isnull=is_open)
    return list(found.order_by("-pk")[:limit])


def get_alert(alert_id: int) -> Alert:
    """Return an alert. Raise NotFound."""
    found = Alert.objects.filter(pk=alert_id).first()
    if found is None:
        raise NotFound(f"there is no alert {alert_id}")
    return found


PageKey = tuple[str, Any, str]
"""A model, the key of a row, and its text."""


def find_pages(subjects: Collection[AlertSubject]) -> dict[AlertSubject, PageKey]:
    """Return the rows whose pages show the subjects, in one statement for each kind of subject."""
    found: dict[AlertSubject, PageKey] = {}
    for kind, load in _LOADERS.items():
        of_kind = {subject.key: subject for subject in subjects if subject.kind is kind}
        if of_kind:
            found |= {of_kind[key]: page for key, page in load(of_kind) if key in of_kind}
    return found


_Pages = Iterable[tuple[str, PageKey]]


def _cells(names: Collection[str]) -> _Pages:
    for key, name in Cell.objects.filter(name__in=names).values_list("id", "name"):
        yield name, ("cell", key, f"cell {name}")


def _pools(names: Collection[str]) -> _Pages:
    for key, name in Pool.objects.filter(name__in=names).values_list("id", "name"):
        yield name, ("pool", key, f"pool {name}")


def _pools_by_id(ids: Collection[str]) -> _Pages:
    for key, name in Pool.objects.filter(pk__in=_numbers(ids)).values_list("id", "name"):
        yield str(key), ("pool", key, f"pool {name}")


def _jobs(ids: Collection[str]) -> _Pages:
    found = Job.objects.visible().filter(pk__in=_numbers(ids))
    for key, name in found.values_list("id", "name"):
        yield str(key), ("job", key, f"job {name} ({key})")


def _groups(ids: Collection[str]) -> _Pages:
    found = TaskGroup.objects.filter(pk__in=_numbers(ids), job__deleted_at=None)
    for key, name, job_id in found.values_list("id", "name", "job_id"):
        yield str(key), ("job", job_id, f"group {name} of job {job_id}")


def _attempts(uids: Collection[str]) -> _Pages:
    known = [UUID(uid) for uid in uids if _is_uuid(uid)]
    for key in Attempt.objects.filter(pk__in=known).values_list("uid", flat=True):
        yield str(key), ("attempt", key, f"attempt {key}")


def _ticks(names: Collection[str]) -> _Pages:
    for name in names:
        yield name, ("tickstate", name, f"tick {name}")


_LOADERS: Mapping[SubjectKind, Callable[[Collection[str]], _Pages]] = MappingProxyType(
    {
        SubjectKind.CELL: _cells,
        SubjectKind.POOL: _pools,
        SubjectKind.POOL_ID: _pools_by_id,
        SubjectKind.JOB: _jobs,
        SubjectKind.GROUP: _groups,
        SubjectKind.ATTEMPT: _attempts,
        SubjectKind.TICK: _ticks,
    }
)


def _numbers(ids: Iterable[str]) -> list[int]:
    return [int(key) for key in ids if key.isascii() and key.isdigit() and len(key) < 19]


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def find_held_by_cell(name: str, limit: int) -> list[UUID]:
    """Return attempts that hold capacity of a cell, newest first."""
    found = Attempt.objects.filter(cell__name=name, released_at=None).order_by("-uid")
    return list(found.values_list("uid", flat=True)[:limit])


def find_lost_with_cell(name: str, lost_at: datetime, limit: int) -> list[UUID]:
    """Return attempts that ended with the loss of a cell, among those created before it."""
    found = rows(
        f"""
        SELECT a.uid FROM (
            SELECT uid, cell_id, reason, finished_at FROM controlplane_attempt
            WHERE uid < %(before)s::uuid ORDER BY uid DESC LIMIT {_SEARCHED_ATTEMPTS}
        ) a
        JOIN controlplane_cell c ON c.id = a.cell_id AND c.name = %(name)s
        WHERE a.reason = 'cell_lost' AND a.finished_at >= %(at)s
        ORDER BY a.uid DESC LIMIT %(limit)s
        """,
        {"before": _first_uid_at(lost_at), "name": name, "at": lost_at, "limit": limit},
    )
    return [uid for (uid,) in found]


def _first_uid_at(at: datetime) -> str:
    """Return the lowest uid of attempts created at or after the next millisecond."""
    return f"{(int(at.timestamp() * 1000) + 1) << 80:032x}"


def find_waiting_of_shape(shape_id: str, limit: int) -> list[int]:
    """Return waiting tasks of a shape."""
    found = Task.objects.filter(
        shape_id__in=_numbers([shape_id]), state=S.PENDING, attempt_open=False
    )
    return list(found.order_by("group_id", "index").values_list("pk", flat=True)[:limit])


def find_shape_pool(shape_id: str) -> str | None:
    """Return the name of the pool of a shape."""
    found = Shape.objects.filter(pk__in=_numbers([shape_id]))
    return found.values_list("pool__name", flat=True).first()


def list_image_failures(image: str) -> list[ImageFailure]:
    """Return the cells that could not pull an image, which a subject may have cut."""
    found = ImageFailure.objects.filter(Q(image=image) | Q(image__startswith=image))
    return list(found.select_related("cell").order_by("cell__name"))
