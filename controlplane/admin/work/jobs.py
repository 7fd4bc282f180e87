"""Admin pages of jobs: progress, and the actions cancel, retry and delete."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.activity import show_activity
from controlplane.admin.badges import (
    count_link,
    counts_badges,
    duration,
    instant,
    length,
    page_link,
    state_badge,
    state_bar,
    with_note,
)
from controlplane.admin.base import (
    IndexedFilter,
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    StateFilter,
    Table,
    by_number,
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.admin.fields import read_reason
from controlplane.admin.live import is_poll
from controlplane.admin.sections.commands import job_commands, submit_command
from controlplane.admin.sections.concurrency import concurrency_sections
from controlplane.admin.sections.graph import graph_sections
from controlplane.admin.sections.retry_rules import retry_rules_sections
from controlplane.admin.tenancy.members import describe_action
from controlplane.admin.usage import download_usage, show_usage
from controlplane.admin.work.callbacks import callback_section
from controlplane.admin.work.failures import failures_sections
from controlplane.admin.work.job_tasks import tasks_sections
from controlplane.admin.work.pending import group_notes
from controlplane.admin.work.relations import (
    find_dependants,
    find_dependencies,
    relations_section,
    schedule_link,
)
from controlplane.admin.work.timeline import job_timeline
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.holds import hold_job, release_job
from controlplane.commands.jobs.move import move_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.moves import QueueEnd
from controlplane.domain.placement.reasons.pending import explain_hold
from controlplane.domain.state.states import TERMINAL, Band, CallbackOn
from controlplane.models import Attempt, Callback, Job, TaskGroup
from controlplane.queries.holds import load_holds
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.search import find_job_ids
from controlplane.queries.views.jobs import find_job_trace
from controlplane.queries.views.overviews import count_tasks_of_jobs

# A job may have more groups; its page shows the first of them.
_SHOWN_GROUPS = 100
_CALLBACK_EVENTS = {CallbackOn.TASK: "end of each task", CallbackOn.JOB: "settlement of the job"}


class OneOffFilter(admin.BooleanFieldListFilter):
    """A filter for the jobs of one-off tasks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.title = "one-off tasks"


class HeldJobsFilter(IndexedFilter):
    """A filter for jobs that are held themselves."""

    title = "hold"
    parameter_name = "held"
    options: ClassVar = {"yes": ("Held", Q(is_held=True, finished_at=None))}


class OnCellsFilter(IndexedFilter):
    """A filter for jobs with a task that holds capacity, which a partial index finds."""

    title = "capacity"
    parameter_name = "on_cells"
    options: ClassVar = {
        "yes": (
            "Held by a task",
            Q(pk__in=Attempt.objects.filter(released_at=None).values("job_id")),
        )
    }


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, newest first."""

    list_display = (
        "number",
        "name",
        "shown_state",
        "tasks",
        "project",
        "pool",
        "owner",
        "created",
        "took",
    )
    list_display_links = ("number", "name")
    sortable_by = ("number", "created")  # an index serves these
    list_filter = (StateFilter, HeldJobsFilter, OnCellsFilter, "band", ("is_one_off", OneOffFilter))
    list_select_related = ("project__domain", "pool", "owner")
    search_fields = ("name",)
    search_help_text = "Name, guid, label or id of a job"
    hides_deleted = True
    defer_fields: ClassVar = ("spec", "annotation")
    linked_lookups = (
        "parent__id__exact",
        "project__id__exact",
        "project__domain__id__exact",
        "owner__id__exact",
    )
    actions = (
        "hold_jobs",
        "release_jobs",
        "move_to_front",
        "move_to_end",
        "change_band",
        "cancel_jobs",
        "retry_jobs",
        "delete_jobs",
    )

    def matching(self, term: str) -> Q:
        """Match names, guids, labels and ids."""
        return Q(pk__in=find_job_ids(term))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Job | None:
        """Return the job; for its page, load all fields and names in one statement.

        A poll does not: most polls are answered without the page.
        """
        if is_poll(request) or from_field:
            found: Job | None = super().get_object(request, object_id, from_field)
            return found
        rows = self.get_queryset(request).defer(None).select_related(*self.list_select_related)
        whole: Job | None = rows.filter(by_number("pk", object_id)).first()
        return whole

    def load(self, rows: list[Any]) -> Mapping[int, Mapping[int, int]]:
        """Return the counts of each job's tasks by state."""
        return count_tasks_of_jobs([job.pk for job in rows])

    number = column(lambda job: job.pk, "job", ordering="pk")
    shown_state = column(lambda job: _state_with_ending(job), "state")
    created = column(lambda job: instant(job.created_at), "created", ordering="pk")
    took = column(lambda job: duration(job.started_at, job.finished_at), "took")

    tasks = loaded_column(lambda job, counts: counts_badges(counts, job__id__exact=job.pk), "tasks")

    @confirmed_action(
        "Hold job",
        title="Hold these jobs?",
        text="No waiting task of these jobs is placed until they are released. Running tasks"
        " continue. The time does not count for scheduling timeouts.",
        button="Hold jobs",
        done="Jobs held",
        fields=("reason",),
    )
    def hold_jobs(self, request: HttpRequest, job: Job) -> None:
        """Place no waiting task of a job until its release."""
        hold_job(job_id=job.pk, **describe_action(request))

    @confirmed_action(
        "Release job",
        title="Release these jobs?",
        text="Their waiting tasks may be placed again, unless their project is held.",
        button="Release jobs",
        done="Jobs released",
        fields=("reason",),
    )
    def release_jobs(self, request: HttpRequest, job: Job) -> None:
        """Release a job from its hold."""
        release_job(job_id=job.pk, **describe_action(request))

    @confirmed_action(
        "Move to the front",
        title="Move these jobs to the front of their bands?",
        text="Their waiting tasks come before all others of their band; in a pool with shares,"
        " before the others of their owners. The last one of several jobs comes first.",
        button="Move to the front",
        done="Jobs moved",
        fields=("reason",),
    )
    def move_to_front(self, request: HttpRequest, job: Job) -> None:
        """Move a job to the front of its band."""
        _move(request, job, QueueEnd.FRONT)

    @confirmed_action(
        "Move to the end",
        title="Move these jobs to the end of their bands?",
        text="Their waiting tasks come after all others of their band; in a pool with shares, after"
        " the others of their owners.",
        button="Move to the end",
        done="Jobs moved",
        fields=("reason",),
    )
    def move_to_end(self, request: HttpRequest, job: Job) -> None:
        """Move a job to the end of its band."""
        _move(request, job, QueueEnd.END)

    @confirmed_action(
        "Change band",
        title="Change the band of these jobs?",
        text="Their waiting tasks are placed as if they had been submitted in the band, and work of"
        " higher bands may evict their running tasks.",
        button="Change band",
        done="Jobs moved",
        fields=("band", "reason"),
    )
    def change_band(self, request: HttpRequest, job: Job) -> None:
        """Move a job to another band."""
        name = request.POST.get("band", "").upper()
        if name not in Band.__members__:
            raise Conflict("select a band")
        _move(request, job, band=Band[name])

    @confirmed_action(
        "Cancel job",
        title="Cancel these jobs?",
        text="The open tasks of these jobs end as KILLED. Running containers get their stop signal,"
        " and are killed after their grace period. Jobs that have ended do not change.",
        button="Cancel jobs",
        done="Jobs being cancelled",
        fields=("reason", "force"),
        applies=lambda job: job.finished_at is None,
        count="{} of {} jobs are open.",
    )
    def cancel_jobs(self, request: HttpRequest, job: Job) -> None:
        """End a job as KILLED; a job that has ended does not change."""
        cancel_job(
            job_id=job.pk,
            reason=read_reason(request),
            force=request.POST.get("force") == "on",
            actor=str(request.user),
            now=clock.now(),
        )

    @confirmed_action(
        "Retry job",
        title="Retry these jobs?",
        text="For each of these jobs, a new job of the same owner runs the tasks that did not"
        " succeed. It reads the results and outputs of the tasks that succeeded.",
        button="Retry jobs",
        done="New jobs",
    )
    def retry_jobs(self, request: HttpRequest, job: Job) -> None:
        """Create a job of the same owner from the tasks that did not succeed."""
        retry_job(job_id=job.pk, guid=None, actor=str(request.user), now=clock.now())

    @confirmed_action(
        "Delete job",
        title="Delete these jobs?",
        text="The jobs are deleted with their tasks, attempts, history and output. This cannot be"
        " undone. A job that has not ended is not deleted: cancel it first.",
        button="Delete jobs",
        done="Jobs deleted",
    )
    def delete_jobs(self, request: HttpRequest, job: Job) -> None:
        """Delete a job that has ended. This cannot be undone."""
        delete_job(job_id=job.pk, actor=str(request.user), now=clock.now())

    def get_urls(self) -> list[Any]:
        """Add the activity and the usage of all jobs to the pages."""
        view = self.admin_site.admin_view
        return [
            path("activity/", view(show_activity), name="controlplane_activity"),
            path("usage/", view(show_usage), name="controlplane_usage"),
            path("usage/file/", view(download_usage), name="controlplane_usage_file"),
            *super().get_urls(),
        ]

    def page_actions(self, obj: Job) -> list[str]:
        """Return holds, moves and cancel for an open job, retry and delete for an ended one.

        The job of a one-off task is deleted only by the claim of the task.
        """
        if obj.finished_at is None:
            hold = "release_jobs" if obj.is_held else "hold_jobs"
            return [hold, "move_to_front", "move_to_end", "change_band", "cancel_jobs"]
        counts = count_tasks_of_jobs([obj.pk])[obj.pk]
        left = sum(counts.get(state, 0) for state in TERMINAL - {TaskState.SUCCEEDED})
        return ["retry_jobs"] * bool(left) + ["delete_jobs"] * (not obj.is_one_off)

    def history_scope(self, obj: Job) -> HistoryScope:
        """Return the history of the job."""
        return HistoryScope(job_id=obj.pk)

    def heading(self, obj: Job) -> dict[str, Any]:
        """Return its state and the reason."""
        requeuing = (
            "its gang fell below a minimum and is being requeued" if obj.is_requeuing else ""
        )
        holds = [] if obj.finished_at else load_holds([obj.pk]).get(obj.pk, [])
        notes = [obj.failure_reason, requeuing, *(explain_hold(hold)["text"] for hold in holds)]
        return {"badge": _state_with_ending(obj), "notes": notes}

    def facts(self, obj: Job) -> list[tuple[str, Any]]:
        """Return the submitted options, and the times of events."""
        return [
            ("guid", obj.guid),
            ("owner", obj.owner),
            ("project", obj.project),
            ("pool", page_link("pool", obj.pool_id, obj.pool)),
            ("band", obj.get_band_display()),
            ("kind", obj.kind),
            ("schedule", schedule_link(obj)),
            ("gang", "the minimum of each group starts together" if obj.coscheduled else None),
            ("tasks that must succeed", obj.min_available if obj.explicit_minimum else None),
            ("tolerated task failures", obj.max_task_failures or None),
            ("labels", ", ".join(f"{k}={v}" for k, v in obj.labels.items())),
            ("annotation", obj.annotation),
            ("created", instant(obj.created_at)),
            ("first start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("all attempts released", instant(obj.settled_at)),
            ("retention", length(obj.ttl_seconds)),
            ("automatic deletion", instant(obj.expires_at)),
            ("callback on", _CALLBACK_EVENTS.get(CallbackOn(obj.callback_on))),
            ("callback URL", obj.callback_url),
            ("trace", _trace(obj)),
        ]

    def leading_sections(self, request: HttpRequest, obj: Job) -> list[Section]:
        """Return what failed."""
        return failures_sections(obj, shows_output=self.may_view(request, "attempt"))

    def sections_for(self, request: HttpRequest, obj: Job) -> list[Section]:
        """Return groups, a page of tasks, related jobs, history and the submitted document."""
        groups = list(
            TaskGroup.objects.filter(job=obj).defer("launch").order_by("position")[:_SHOWN_GROUPS]
        )
        spec, now = json.dumps(obj.spec, indent=2, ensure_ascii=False), clock.now()
        counts = count_tasks_of_jobs([obj.pk])[obj.pk]
        dependencies, dependants = find_dependencies(obj), find_dependants(obj)
        return [
            _groups_section(obj, groups, now),
            *retry_rules_sections(obj, groups),
            *concurrency_sections(obj),
            *graph_sections(obj, groups, dependencies, dependants),
            *tasks_sections(obj, counts, request.GET, now),
            relations_section(obj, dependencies, dependants),
            job_timeline(obj.pk),
            *(callback_section(Callback.objects.filter(job=obj)) if obj.callback_on else ()),
            job_commands(obj, counts),
            MonospaceText(
                "Submitted document", text=spec, is_open=False, command=submit_command(obj.spec)
            ),
        ]


def _trace(job: Job) -> SafeString | str:
    """Return the id of its trace, with a link if there is an address for traces."""
    trace = find_job_trace(job.pk)
    if trace is None:
        return ""
    if trace["url"] is None:
        return str(trace["id"])
    return format_html('<a class="cellrun-link" href="{}">{}</a>', trace["url"], trace["id"])


def _move(
    request: HttpRequest, job: Job, to: QueueEnd | None = None, band: Band | None = None
) -> None:
    move_job(job_id=job.pk, to=to, band=band, **describe_action(request))


def _state_with_ending(job: Job) -> SafeString:
    badge = state_badge(job.state)
    if job.ending_as is None or job.finished_at is not None:
        return badge
    return with_note(badge, f"ending as {job.get_ending_as_display().lower()}")


def _size(group: TaskGroup) -> str:
    few = group.task_count != group.replicas
    return f"{group.task_count} of {group.replicas}" if few else str(group.replicas)


def _progress(group: TaskGroup) -> SafeString:
    counts = dict(enumerate(group.counts))
    filters = {"job__id__exact": group.job_id, "group__id__exact": group.pk}
    return state_bar(counts) + counts_badges(counts, **filters)


def _promise(group: TaskGroup) -> str:
    promises = {"": "", "lease": "exclusively", "strict": "strictly exclusively"}
    once = "at most once" if group.at_most_once else ""
    return ", ".join(filter(None, (once, promises[group.exclusive])))


def _groups_section(job: Job, groups: list[TaskGroup], now: datetime) -> Table:
    notes = group_notes(groups, now)
    return Table(
        "Task groups",
        columns=("group", "tasks", "by state", "minimum", "delivery", "pending reason"),
        rows=[
            (
                group.name,
                count_link("task", _size(group), job__id__exact=job.pk, group__id__exact=group.pk),
                _progress(group),
                group.min_available if job.explicit_minimum or job.coscheduled else "all",
                _promise(group),
                notes.get(group.pk, ""),
            )
            for group in groups
        ],
    )
