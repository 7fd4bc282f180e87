"""The attempts of a cell: those that run, those of the last hour, and failed images."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, list_link, page_link, quantities, with_note
from controlplane.admin.base import Section, Table
from controlplane.admin.sections.waterfall import MAX_LINES, waterfall_sections
from controlplane.admin.work.attempts import attempt_badge, reason_of
from controlplane.contract.states import FailureKind
from controlplane.models import Attempt, Cell, ImageFailure
from controlplane.models.attempts import IMAGE_FAILED

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_SHOWN = 25
_SHOWN_FAILURES = 200
_NEWEST = 3
_SHOWN_SYSTEM_FAILURES = 10


def attempt_sections(cell: Cell, *, now: datetime) -> list[Section]:
    """Return the attempts that hold capacity, and all of the last hour on one time axis."""
    held = list(_attempts(cell).filter(released_at=None).order_by("-uid")[: _SHOWN + 1])
    ended = list(
        _attempts(cell)
        .filter(released_at__gte=now - HOUR, job__deleted_at=None)
        .order_by("-released_at")[:MAX_LINES]
    )
    named = [
        (f"{attempt.job.name} {_task_name(attempt)} #{attempt.number}", attempt, attempt.steps)  # type: ignore[attr-defined]
        for attempt in (*held, *ended)
    ]
    more = list_link("attempt", "All these attempts", held="yes", cell__id__exact=cell.pk)
    table = Table(
        "Attempts that hold capacity",
        anchor="attempts",
        columns=("job", "task", "state", "since", "holds", "placed", "attempt"),
        rows=[_row(attempt) for attempt in held[:_SHOWN]],
        more=more if len(held) > _SHOWN else None,
    )
    return [table, *waterfall_sections(named, now=now, since=now - HOUR, title="The last hour")]


def _attempts(cell: Cell) -> QuerySet[Attempt]:
    return (
        Attempt.objects.filter(cell=cell)
        .select_related("job", "group", "task")
        .defer("result", "usage", "details", "job__spec", "job__annotation", "group__launch")
        .annotate(steps=KeyTransform("steps", "usage"))
    )


def _row(attempt: Attempt) -> tuple[Any, ...]:
    badge = attempt_badge(attempt)
    if attempt.stop_reason:
        badge = with_note(badge, f"is being stopped: {attempt.stop_reason}")
    return (
        page_link("job", attempt.job_id, attempt.job),
        page_link("task", attempt.task_id, _task_name(attempt)),
        badge,
        instant(attempt.state_since),
        quantities(attempt.resources or attempt.group.resources),
        instant(attempt.created_at),
        page_link("attempt", attempt.pk, attempt.pk),
    )


def _task_name(attempt: Attempt) -> str:
    return f"{attempt.group.name}.{attempt.task.index}"


def image_failures(cell: Cell, *, now: datetime) -> Table:
    """Return the images that failed on the cell in the last day, the newest failure first."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in _failed_attempts(cell, now):
        attempts.setdefault(attempt.image or "", []).append(attempt)  # type: ignore[attr-defined]
    # The attempts may be deleted before their failure is forgotten.
    known = {row.image: row for row in ImageFailure.objects.filter(cell=cell)[:_SHOWN_FAILURES]}
    times = {image: row.failed_at for image, row in known.items()}
    times |= {image: found[0].finished_at or now for image, found in attempts.items()}
    return Table(
        "Image failures of the last day",
        anchor="images",
        columns=("image", "failures", "last", "reason", "attempts", "held until"),
        rows=[
            (
                image,
                _number(cell, image, attempts.get(image), known.get(image)),
                instant(times[image]),
                reason_of(attempts[image][0]) if image in attempts else "could not be pulled",
                _links(attempts.get(image, ())[:_NEWEST]),
                instant(known[image].held_until) if image in known else "",
            )
            for image in sorted(times, key=times.__getitem__, reverse=True)
        ],
    )


def system_failures(cell: Cell) -> Table:
    """Return the newest attempts that failed for reasons of the system, with their texts."""
    found = (
        _attempts(cell)
        .filter(failure_kind=FailureKind.SYSTEM, job__deleted_at=None)
        .order_by("-uid")[:_SHOWN_SYSTEM_FAILURES]
    )
    return Table(
        "Newest system failures",
        anchor="failures",
        columns=("job", "task", "ended", "reason", "attempt"),
        rows=[
            (
                page_link("job", attempt.job_id, attempt.job),
                page_link("task", attempt.task_id, _task_name(attempt)),
                instant(attempt.finished_at),
                reason_of(attempt),
                page_link("attempt", attempt.pk, attempt.pk),
            )
            for attempt in found
        ],
    )


def _failed_attempts(cell: Cell, now: datetime) -> QuerySet[Attempt]:
    return (
        Attempt.objects.filter(IMAGE_FAILED, cell=cell, finished_at__gte=now - DAY)
        .filter(job__deleted_at=None)
        .only("finished_at", "reason", "message", "number", "group_id")
        .annotate(image=KeyTextTransform("image", "group__launch"))
        .order_by("-finished_at")[:_SHOWN_FAILURES]
    )


def _number(
    cell: Cell, image: str, attempts: list[Attempt] | None, known: ImageFailure | None
) -> SafeString | int:
    if not attempts:
        return known.failures if known else 0
    query = {"cell__id__exact": cell.pk, "image_failed": "yes", "group__launch__image": image}
    text, address = list_link("attempt", str(len(attempts)), **query)
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def _links(attempts: Iterable[Attempt]) -> SafeString:
    links = ((page_link("attempt", attempt.pk, str(attempt.pk)[-12:]),) for attempt in attempts)
    return format_html_join(" ", "{}", links)
