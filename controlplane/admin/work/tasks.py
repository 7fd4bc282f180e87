"""Admin pages of tasks: state, pending reason, attempts and history."""

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    count_link,
    duration,
    instant,
    page_link,
    state_badge,
    with_note,
)
from controlplane.admin.base import (
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    StateFilter,
    Table,
    column,
    loaded_column,
)
from controlplane.admin.lists.paging import BoundedPaginator
from controlplane.admin.sections.commands import task_commands
from controlplane.admin.sections.waterfall import waterfall_sections
from controlplane.admin.work.artifacts import artifact_browser
from controlplane.admin.work.attempts import all_attempts, attempt_rows, request_of
from controlplane.admin.work.cache import cache_facts, entry_sections, find_entry_of_task
from controlplane.admin.work.callbacks import callback_section
from controlplane.admin.work.failures import task_failure_sections
from controlplane.admin.work.filters.tasks import (
    OpenFilter,
    selects_held,
    selects_waiting,
    sorts_waiting,
)
from controlplane.admin.work.one_offs import one_off_facts
from controlplane.admin.work.pending import task_notes, waiting_facts
from controlplane.admin.work.timeline import task_timeline
from controlplane.contract.states import TaskState
from controlplane.domain.state.exit_statuses import with_signal
from controlplane.domain.state.states import ACTIVE
from controlplane.models import Attempt, Callback, OneOff, Task
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.search import find_task_ids
from controlplane.queries.views.artifacts import get_task_artifacts

_SHOWN_ATTEMPTS = 50


class TaskStateFilter(StateFilter):
    """A filter by state, which indexes find among many tasks of all jobs, or the tasks of a job."""

    states: ClassVar = frozenset(TaskState)

    def condition(self, state: TaskState, request: HttpRequest) -> Q:
        """Return the condition; of PENDING tasks of all jobs, those that could be placed.

        A list of the tasks of a job, or of those on cells, is short.
        """
        found = Q(state=state)
        if "job__id__exact" in request.GET or selects_held(request.GET):
            return found
        if state == TaskState.PENDING:
            return found & Q(attempt_open=False)
        if state in ACTIVE:
            return found & Q(pk__in=Attempt.objects.filter(released_at=None).values("task_id"))
        return found

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows in the selected state; the open filter may select waiting ones already.

        The planner has no statistics of a repeated condition, and may join each row to each.
        """
        if self.value() is None or not selects_waiting(request.GET):
            return super().queryset(request, queryset)
        return queryset if self.value() == f"{TaskState.PENDING:d}" else queryset.none()


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    """Tasks, newest first."""

    list_display = (
        "number",
        "job_link",
        "name",
        "shown_state",
        "cell",
        "attempt_number",
        "exit_code",
        "took",
    )
    list_display_links = ("number", "name")
    sortable_by = ("number",)  # an index serves this
    list_filter = (TaskStateFilter, OpenFilter)
    list_select_related = ("job", "group")
    search_fields = ("pk",)
    search_help_text = "Id of a task, or its name JOB/GROUP.INDEX, such as sweep/shard.12"
    linked_lookups = ("job__id__exact", "group__id__exact", "cache_entry_id__exact")
    hides_deleted = True
    defer_fields: ClassVar = ("job__spec", "job__annotation", "group__launch")

    def get_paginator(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> BoundedPaginator:
        """Return the paginator; it finds waiting tasks that no index sorts once for all."""
        made = super().get_paginator(request, queryset, *args, **kwargs)
        made.is_costly = sorts_waiting(request.GET)
        return made

    def matching(self, term: str) -> Q:
        """Match ids and names."""
        return Q(pk__in=find_task_ids(term))

    def load(self, rows: list[Any]) -> dict[int, tuple[Attempt | None, str]]:
        """Return for each task its latest attempt with its cell, and its pending reason."""
        uids = [task.attempt_uid for task in rows if task.attempt_uid]
        attempts = Attempt.objects.select_related("cell").in_bulk(uids)
        notes = task_notes(rows, clock.now())
        return {task.pk: (attempts.get(task.attempt_uid), notes.get(task.pk, "")) for task in rows}

    number = column(lambda task: task.pk, "task", ordering="pk")
    job_link = column(lambda task: page_link("job", task.job_id, task.job), "job")
    name = column(lambda task: f"{task.group.name}.{task.index}", "name")
    took = column(lambda task: duration(task.started_at, task.finished_at), "took")

    shown_state = loaded_column(
        lambda task, loaded: with_note(state_badge(task.state), loaded[1] or task.failure_reason),
        "state",
    )
    cell = loaded_column(lambda task, loaded: _cell_of(loaded[0]), "cell")
    exit_code = loaded_column(lambda task, loaded: loaded[0] and loaded[0].exit_code, "exit code")

    def history_scope(self, obj: Task) -> HistoryScope:
        """Return the history of the task."""
        return HistoryScope(task_id=obj.pk)

    def heading(self, obj: Task) -> dict[str, Any]:
        """Return its state and the reason."""
        notes = task_notes([obj], clock.now())
        return {
            "title": f"{obj.group.name}.{obj.index} of {obj.job}",
            "badge": state_badge(obj.state),
            "notes": [*notes.values(), with_signal(obj.failure_reason)],
        }

    def facts(self, obj: Task) -> list[tuple[str, Any]]:
        """Return its budgets, its times, and why it waits."""
        group = obj.group
        one_off = OneOff.objects.filter(pk=obj.pk).first() if obj.job.is_one_off else None
        return [
            ("task", obj.pk),
            ("job", page_link("job", obj.job_id, obj.job)),
            *one_off_facts(one_off, TaskState(obj.state)),
            *cache_facts(obj, find_entry_of_task(obj)),
            ("requests", request_of(obj)),
            ("attempts", count_link("attempt", obj.attempt_number, task__id__exact=obj.pk)),
            ("failures", _charged(obj.failure_count, group.retries_failure)),
            ("preemptions", _charged(obj.preemption_count, group.retries_preemption)),
            ("system failures", obj.system_failure_count),
            ("consecutive system failures", _charged(obj.system_row, group.retries_system)),
            ("consecutive crashes", obj.consecutive_crashes),
            ("next attempt not before", instant(obj.not_before) if obj.not_before else None),
            ("first start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            *waiting_facts(obj, now=clock.now()),
        ]

    def leading_sections(self, request: HttpRequest, obj: Task) -> list[Section]:
        """Return why it did not succeed."""
        return task_failure_sections(obj, shows_output=self.may_view(request, "attempt"))

    def sections(self, obj: Task) -> list[Section]:
        """Return attempts, result, artifacts, history and callbacks."""
        attempts = list(
            Attempt.objects.filter(task=obj)
            .select_related("cell")
            .order_by("-number")[:_SHOWN_ATTEMPTS]
        )
        has_more = obj.attempt_number > len(attempts)
        sections: list[Section] = [
            Table(
                f"Attempts (the newest {_SHOWN_ATTEMPTS})" if has_more else "Attempts",
                more=all_attempts(obj) if has_more else None,
                columns=(
                    "attempt",
                    "state",
                    "cell",
                    "exit code",
                    "reason",
                    "start",
                    "took",
                    "released",
                    "",
                ),
                rows=attempt_rows(attempts),
                empty="none: its result is from the cache"
                if obj.cache_entry_id is not None
                else "no attempt yet",
            ),
        ]
        named = ((f"#{it.number}", it, (it.usage or {}).get("steps")) for it in attempts)
        sections += waterfall_sections(named, now=clock.now())
        if attempts and attempts[0].result:
            cut = " (first 10 KiB)" if attempts[0].result_truncated else ""
            sections.append(MonospaceText(f"Result{cut}", text=attempts[0].result))
        if obj.cache_entry_id is not None and (entry := find_entry_of_task(obj)):
            sections += entry_sections(entry)
        elif (found := get_task_artifacts(obj.pk))["artifacts"]:
            sections.append(artifact_browser(found["attempt"], found["artifacts"]))
        sections.append(task_timeline(obj))
        if obj.job.callback_on:
            of_task = Callback.objects.filter(job_id=obj.job_id, task_id=obj.pk)
            sections += callback_section(of_task)
        return [*sections, task_commands(obj)]


def _charged(count: int, retries: int) -> str:
    """Return a number of ends and how many of them are retried: the last one may not be."""
    return f"{count} (at most {retries} {'is' if retries == 1 else 'are'} retried)"


def _cell_of(attempt: Attempt | None) -> SafeString | str:
    return page_link("cell", attempt.cell_id, attempt.cell.name) if attempt else NOTHING
