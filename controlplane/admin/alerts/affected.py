"""The sections of an alert's page: its meaning, its subject, and the work that it affects."""

import re
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from controlplane.admin.alerts.subjects import subject_links
from controlplane.admin.badges import (
    cell_badge,
    counts_badges,
    instant,
    list_link,
    page_link,
    state_badge,
)
from controlplane.admin.base import Prose, Section, Table
from controlplane.domain.alerts import ALERTS, SubjectKind, find_subject
from controlplane.models import Alert, Attempt, Cell, Job, Pool, Task
from controlplane.queries.pages.alerts import (
    find_held_by_cell,
    find_lost_with_cell,
    find_pages,
    find_shape_pool,
    find_waiting_of_shape,
    list_image_failures,
)
from controlplane.queries.views.overviews import count_tasks_of_jobs

_SHOWN = 20
_LINK = re.compile(r"\[([^]]+)\]\(([^)#]*)(?:#[^)]*)?\)")
_CODE = re.compile(r"`([^`]+)`")


def explanation(alert: Alert) -> list[Section]:
    """Return what the alert means and what to do."""
    kind = ALERTS.get(alert.kind)
    if kind is None:  # raised by another release
        return []
    return [
        Prose("Meaning", paragraphs=[_sentence(kind.meaning)]),
        Prose("What to do", paragraphs=[_sentence(kind.action)]),
    ]


def _sentence(markdown: str) -> SafeString:
    """Render a text of the documentation; a link becomes the name of the page."""
    text = str(escape(markdown[0].upper() + markdown[1:]))
    text = _LINK.sub(lambda found: f"{found[1]} (docs/{found[2]})", text)
    text = _CODE.sub(r"<code>\1</code>", text)
    return mark_safe(text + ("" if text.endswith(".") else "."))


def subject_section(alert: Alert, user: Any) -> list[Section]:
    """Return the subject of the alert, with a link to its page."""
    link = subject_links([alert], user)[alert.pk]
    return [Prose("Subject", paragraphs=[link])]


def affected(alert: Alert, viewable: Collection[str]) -> list[Section]:
    """Return the work that the alert affects, of the models that the user may view."""
    subject = find_subject(alert.kind, alert.subject)
    may_view = set(viewable)
    if subject.kind is SubjectKind.SHAPE and may_view >= {"task", "job"}:
        return _of_shape(subject.key)
    if subject.kind is SubjectKind.IMAGE and "cell" in may_view:
        return [_of_image(subject.key)]
    found = find_pages([subject]).get(subject)
    if found is None:
        return []
    model, key, _ = found
    match model:
        case "cell" if may_view >= {"cell", "attempt", "task", "job"}:
            return _of_cell(alert, Cell.objects.get(pk=key))
        case "pool" if may_view >= {"cell", "task"}:
            return _of_pool(Pool.objects.get(pk=key))
        case "job" if "job" in may_view:
            return [_of_job(key)]
        case "attempt" if may_view >= {"attempt", "task", "job"}:
            return [_attempts("Affected task", [key])]
    return []


def _of_cell(alert: Alert, cell: Cell) -> list[Section]:
    held = find_held_by_cell(cell.name, _SHOWN + 1)
    more = list_link("attempt", "All of them", held="yes", cell__id__exact=cell.pk)
    sections: list[Section] = [
        Table(
            "Cell",
            columns=("cell", "state", "reason"),
            rows=[(page_link("cell", cell.pk, cell), cell_badge(cell.state), cell.state_reason)],
        )
    ]
    if lost := find_lost_with_cell(cell.name, alert.raised_at, _SHOWN):
        sections.append(_attempts("Tasks whose attempts ended with the cell", lost))
    sections.append(
        _attempts("Tasks on the cell now", held[:_SHOWN], more=more if len(held) > _SHOWN else None)
    )
    return sections


def _attempts(title: str, uids: Sequence[UUID], *, more: tuple[str, str] | None = None) -> Table:
    found = (
        Attempt.objects.select_related("task", "group", "job")
        .only("state", "created_at", "task__index", "task__state", "group__name", "job__name")
        .in_bulk(list(uids))
    )
    return Table(
        title,
        columns=("task", "job", "state of the task", "attempt", "state of the attempt", "created"),
        rows=[
            (
                page_link("task", it.task_id, f"{it.group.name}.{it.task.index}"),
                page_link("job", it.job_id, it.job),
                state_badge(it.task.state),
                page_link("attempt", it.pk, str(it.pk)[:13]),
                state_badge(it.state),
                instant(it.created_at),
            )
            for it in (found[uid] for uid in uids if uid in found)
        ],
        empty="no tasks",
        more=more,
    )


def _of_pool(pool: Pool) -> list[Section]:
    cells = Cell.objects.filter(pool=pool).select_related("lease").order_by("name")
    silent = cells.filter(lease__silent_ticks__gt=0).exclude(state="LOST")
    return [
        _pool_links(pool.name),
        Table(
            "Silent cells",
            columns=("cell", "state", "last message"),
            rows=[
                (
                    page_link("cell", it.pk, it),
                    cell_badge(it.state),
                    instant(it.lease.last_message_at),
                )
                for it in silent[:_SHOWN]
            ],
            empty="no silent cell",
        ),
    ]


def _pool_links(name: str) -> Prose:
    text, address = list_link("task", f"Tasks that wait in pool {name}", open="pending", pool=name)
    link = format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)
    return Prose("Affected tasks", paragraphs=[link])


def _of_job(job_id: int) -> Table:
    counts = count_tasks_of_jobs([job_id])[job_id]
    return Table(
        "Affected job",
        columns=("job", "state", "tasks"),
        rows=[
            (page_link("job", job.pk, job), state_badge(job.state), counts_badges(counts))
            for job in Job.objects.visible().filter(pk=job_id).only("name", "state")
        ],
        empty="it was deleted",
    )


def _of_shape(key: str) -> list[Section]:
    ids = find_waiting_of_shape(key, _SHOWN)
    tasks = Task.objects.select_related("job", "group").only(
        *("state", "index", "job__name", "group__name")
    )
    pool = find_shape_pool(key)
    return [
        Table(
            "Affected tasks",
            columns=("task", "job", "state"),
            rows=[
                (
                    page_link("task", it.pk, f"{it.group.name}.{it.index}"),
                    page_link("job", it.job_id, it.job),
                    state_badge(it.state),
                )
                for it in tasks.filter(pk__in=ids).order_by("pk")
            ],
            empty="no task of the shape waits",
            more=list_link("task", f"All that wait in pool {pool}", open="pending", pool=pool)
            if pool and len(ids) == _SHOWN
            else None,
        )
    ]


def _of_image(image: str) -> Table:
    return Table(
        "Cells that could not pull it",
        columns=("cell", "failures", "last failure", "its tasks wait until"),
        rows=[
            (
                page_link("cell", it.cell_id, it.cell),
                it.failures,
                instant(it.failed_at),
                instant(it.held_until),
            )
            for it in list_image_failures(image)
        ],
        empty="no cell",
    )
