"""The paginated section of tasks on a job's page: state, result and attempts of each task."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from django.core.paginator import Paginator
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.admin.badges import (
    NOTHING,
    duration,
    list_link,
    page_link,
    shortened,
    state_badge,
    with_note,
)
from controlplane.admin.base import Section, Table
from controlplane.admin.lists.paging import Chip, Pages
from controlplane.admin.sections.grid import grid_sections
from controlplane.admin.sections.waterfall import waterfall_sections
from controlplane.admin.work.attempts import all_attempts, attempt_note, newest_attempts, reason_of
from controlplane.admin.work.pending import task_notes
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import COLOURS
from controlplane.models import Attempt, Job, Task

# Up to 100 tasks are on one page; of more, each page has 25, as lists do. A job may have 10,000.
_ALL_UP_TO = 100
_SHOWN_TASKS = 25
# Attempts per task: a task that keeps restarting has thousands.
_SHOWN_ATTEMPTS = 10
_WIDTH = 80
ANCHOR = "tasks"
"""The anchor of the section, and the query parameter of its page number."""

STATE = "state"
"""The query parameter of the state of the shown tasks."""


def tasks_sections(
    job: Job, counts: Mapping[int, int], query: Mapping[str, str], now: datetime
) -> list[Section]:
    """Return all tasks as a grid, one page of them in their order, and its attempts over time.

    `counts`: the job's tasks by state. `query` selects state and page.
    """
    tasks = Task.objects.filter(job=job).select_related("group").defer("group__launch")
    state = next((it for it in COLOURS if it.name.lower() == query.get(STATE)), None)
    if state is not None:
        tasks = tasks.filter(state=state)
    filters = {} if state is None else {STATE: state.name.lower()}
    count = sum(counts.values()) if state is None else counts.get(state, 0)
    each = _ALL_UP_TO if count <= _ALL_UP_TO else _SHOWN_TASKS
    paginator = Paginator(tasks.order_by("id"), each)
    paginator.count = count
    page = paginator.get_page(query.get(ANCHOR))
    shown: list[Task] = list(page)
    notes = task_notes(shown, now)
    attempts = newest_attempts([task.pk for task in shown], each=_SHOWN_ATTEMPTS)
    table = Table(
        "Tasks",
        anchor=ANCHOR,
        pages=Pages(page, ANCHOR, filters) if page.has_other_pages() else None,
        chips=_chips(counts, state) if len(counts) > 1 or state is not None else (),
        empty="no task in this state",
        columns=("task", "state", "took", "result", "attempts"),
        rows=[
            (
                page_link("task", task.pk, f"{task.group.name}.{task.index}"),
                with_note(state_badge(task.state), notes.get(task.pk) or task.failure_reason),
                duration(task.started_at, task.finished_at),
                _result(task, attempts[task.pk]),
                _attempts(task, attempts[task.pk]),
            )
            for task in shown
        ],
        more=list_link("task", "All tasks of this job", job__id__exact=job.pk)
        if page.has_other_pages()
        else None,
    )
    named = (
        (f"{task.group.name}.{task.index} #{attempt.number}", attempt, attempt.steps)  # type: ignore[attr-defined]
        for task in shown
        for attempt in attempts[task.pk]
    )
    grid = grid_sections(job.pk, sum(counts.values()))
    return [*grid, table, *waterfall_sections(named, now=now)]


def _chips(counts: Mapping[int, int], chosen: TaskState | None) -> list[Chip]:
    """Return a chip for all tasks, and one for each state that tasks have."""
    chips = [Chip(f"all {sum(counts.values())}", f"?#{ANCHOR}", chosen is None)]
    for state, colour in COLOURS.items():
        if counts.get(state) or state == chosen:
            name = state.name.lower()
            address = f"?{STATE}={name}#{ANCHOR}"
            text = f"{name} {counts.get(state, 0)}"
            chips.append(Chip(text, address, state == chosen, colour))
    return chips


def _attempts(task: Task, attempts: Sequence[Attempt]) -> SafeString | str:
    """Return a task's newest attempts, with a link to all if there are more."""
    if not attempts:
        return NOTHING
    lines = format_html_join("", "<li>{}</li>", ((_line(attempt),) for attempt in attempts))
    shown = format_html('<ol class="cellrun-attempts">{}</ol>', lines)
    if task.attempt_number <= len(attempts):
        return shown
    text, address = all_attempts(task)
    return format_html('{}<a class="cellrun-link" href="{}">{}</a>', shown, address, text)


def _line(attempt: Attempt) -> SafeString:
    badge = format_html("<span>{}</span> {}", attempt.number, state_badge(attempt.state))
    exit_code = "" if attempt.exit_code is None else f"exit {attempt.exit_code}"
    reason = "" if attempt.state == TaskState.SUCCEEDED else shortened(reason_of(attempt), _WIDTH)
    return format_html(
        "<span>{} <small>{}</small></span> {} <small>{}</small> <small>{}</small>",
        page_link("attempt", attempt.pk, badge),
        attempt_note(attempt),
        page_link("cell", attempt.cell_id, attempt.cell.name),
        exit_code,
        reason,
    )


def _result(task: Task, attempts: Sequence[Attempt]) -> SafeString | str:
    """Return the beginning of the newest attempt's result, or a link to that of a cache entry."""
    if task.cache_entry_id is not None:
        return page_link("cacheentry", task.cache_entry_id, "from the cache")
    result = attempts[0].shown_result if attempts else None  # type: ignore[attr-defined]
    if not result:
        return ""
    return format_html('<span class="cellrun-result">{}</span>', shortened(result, _WIDTH))
