"""Admin pages of jobs: show progress; cancel, retry, delete."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    counts_badges,
    duration,
    instant,
    length,
    page_link,
    state_badge,
    with_note,
)
from controlplane.admin.base import ActionConfirmation, MonospaceText, ReadOnlyAdmin, Section, Table
from controlplane.admin.work.callbacks import callback_section
from controlplane.admin.work.job_tasks import tasks_section
from controlplane.admin.work.pending import group_notes
from controlplane.admin.work.relations import relations_section
from controlplane.admin.work.timeline import job_timeline
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import TERMINAL, CallbackOn
from controlplane.models import Callback, Job, TaskGroup
from controlplane.queries.views.overviews import count_tasks_of_jobs

# A job may have more groups; its page shows the first of them.
_SHOWN_GROUPS = 100
_TOLD_WHEN = {CallbackOn.TASK: "each task has ended", CallbackOn.JOB: "the job has settled"}


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, newest first."""

    list_display = (
        "number",
        "name",
        "shown_state",
        "tasks",
        "pool",
        "owner",
        "created",
        "took",
    )
    list_display_links = ("number", "name")
    list_filter = ("state", "band", "is_one_off")
    list_select_related = ("pool", "owner")
    search_fields = ("name",)
    search_help_text = "A job's whole name, number or guid"
    defer_fields: ClassVar = ("spec", "annotation")
    actions = ("cancel_jobs", "retry_jobs", "delete_jobs")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Exclude deleted jobs."""
        return super().get_queryset(request).visible()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Also the children of one job, which its page links to."""
        return lookup == "parent__id__exact" or bool(super().lookup_allowed(lookup, value, request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Whole names, numbers and guids alone: what an index finds among a million."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = queryset.filter(name=term) | queryset.filter(guid=term)
        if term.isascii() and term.isdigit() and len(term) < 19:
            found |= queryset.filter(pk=int(term))
        return found, False

    def complete_rows(self, rows: list[Any]) -> None:
        """Fetch the counts of all rows at once."""
        counts = count_tasks_of_jobs([job.pk for job in rows])
        for job in rows:
            job.shown_counts = counts[job.pk]

    @admin.display(description="job", ordering="pk")
    def number(self, job: Job) -> int:
        """Its id."""
        return job.pk

    @admin.display(description="state")
    def shown_state(self, job: Job) -> SafeString:
        """Its state, and how it is ending."""
        return _state_with_ending(job)

    @admin.display(description="tasks")
    def tasks(self, job: Job) -> SafeString:
        """Its tasks by state."""
        return counts_badges(job.shown_counts)  # type: ignore[attr-defined]

    @admin.display(description="created", ordering="pk")
    def created(self, job: Job) -> SafeString | str:
        """When it was submitted."""
        return instant(job.created_at)

    @admin.display(description="took")
    def took(self, job: Job) -> str:
        """From its first start to its end."""
        return duration(job.started_at, job.finished_at)

    @admin.action(description="Cancel job", permissions=["operate"])
    def cancel_jobs(self, request: HttpRequest, rows: QuerySet[Job]) -> HttpResponse | None:
        """End jobs KILLED; those that have ended stay as they are."""
        reason = request.POST.get("reason", "").strip()
        force = request.POST.get("force") == "on"

        def cancel(job: Job) -> None:
            actor = str(request.user)
            cancel_job(job_id=job.pk, reason=reason, force=force, actor=actor, now=clock.now())

        question = ActionConfirmation(
            action="cancel_jobs",
            title="Cancel these jobs?",
            text="Their open tasks end as killed: running containers get their stop signal and,"
            " after their grace, are killed. Jobs that have ended stay as they are.",
            button="Cancel jobs",
            done="Jobs being cancelled",
            act=cancel,
            fields=("reason", "force"),
        )
        return self.confirmed(request, rows, question)

    @admin.action(description="Retry job", permissions=["operate"])
    def retry_jobs(self, request: HttpRequest, rows: QuerySet[Job]) -> HttpResponse | None:
        """Make a new job, of the same owner, of the tasks of each that did not succeed."""

        def retry(job: Job) -> None:
            retry_job(job_id=job.pk, guid=None, actor=str(request.user), now=clock.now())

        question = ActionConfirmation(
            action="retry_jobs",
            title="Retry these jobs?",
            text="The tasks of each that did not succeed become a new job of the same owner; what"
            " succeeded is kept and read from.",
            button="Retry jobs",
            done="New jobs",
            act=retry,
        )
        return self.confirmed(request, rows, question)

    @admin.action(description="Delete job", permissions=["operate"])
    def delete_jobs(self, request: HttpRequest, rows: QuerySet[Job]) -> HttpResponse | None:
        """Hide jobs that have ended. This cannot be undone."""

        def delete(job: Job) -> None:
            delete_job(job_id=job.pk, actor=str(request.user), now=clock.now())

        question = ActionConfirmation(
            action="delete_jobs",
            title="Delete these jobs?",
            text="The jobs are hidden, with their tasks, attempts, history and output. This"
            " cannot be undone. Jobs that have not ended are kept.",
            button="Delete jobs",
            done="Jobs deleted",
            act=delete,
        )
        return self.confirmed(request, rows, question)

    def page_actions(self, obj: Job) -> list[str]:
        """An open job can be cancelled, one that has ended be retried, or deleted.

        The job of a one-off task is deleted by the claim of the task alone.
        """
        if obj.finished_at is None:
            return ["cancel_jobs"]
        counts = count_tasks_of_jobs([obj.pk])[obj.pk]
        left = sum(counts.get(state, 0) for state in TERMINAL - {TaskState.SUCCEEDED})
        return ["retry_jobs"] * bool(left) + ["delete_jobs"] * (not obj.is_one_off)

    def heading(self, obj: Job) -> dict[str, Any]:
        """Its state."""
        bouncing = "its gang fell below a minimum and goes back to wait" if obj.is_bouncing else ""
        return {"badge": _state_with_ending(obj), "notes": [obj.failure_reason, bouncing]}

    def facts(self, obj: Job) -> list[tuple[str, Any]]:
        """What was submitted and when what happened."""
        return [
            ("guid", obj.guid),
            ("owner", obj.owner),
            ("project", obj.project),
            ("pool", page_link("pool", obj.pool_id, obj.pool)),
            ("band", obj.get_band_display()),
            ("kind", obj.kind),
            ("gang", "its minima start together" if obj.coscheduled else None),
            ("minimum that must succeed", obj.min_available if obj.explicit_minimum else None),
            ("tolerated failures", obj.max_task_failures or None),
            ("labels", ", ".join(f"{k}={v}" for k, v in obj.labels.items())),
            ("annotation", obj.annotation),
            ("created", instant(obj.created_at)),
            ("first start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("all released", instant(obj.settled_at)),
            ("kept for", length(obj.ttl_seconds)),
            ("deleted by itself", instant(obj.expires_at)),
            ("callback on", _TOLD_WHEN.get(CallbackOn(obj.callback_on))),
            ("callback URL", obj.callback_url),
        ]

    def sections_at(self, obj: Job, query: Mapping[str, str]) -> list[Section]:
        """Groups, a page of tasks, history, and the job as it was submitted."""
        groups = list(
            TaskGroup.objects.filter(job=obj).defer("launch").order_by("position")[:_SHOWN_GROUPS]
        )
        spec, now = json.dumps(obj.spec, indent=2, ensure_ascii=False), clock.now()
        return [
            _groups_section(obj, groups, now),
            tasks_section(obj, query, now),
            relations_section(obj),
            job_timeline(obj.pk),
            *(callback_section(Callback.objects.filter(job=obj)) if obj.callback_on else ()),
            MonospaceText("As submitted", text=spec, is_open=False),
        ]


def _state_with_ending(job: Job) -> SafeString:
    badge = state_badge(job.state)
    if job.ending_as is None or job.finished_at is not None:
        return badge
    return with_note(badge, f"ending as {job.get_ending_as_display().lower()}")


def _size(group: TaskGroup) -> str:
    few = group.task_count != group.replicas
    return f"{group.task_count} of {group.replicas}" if few else str(group.replicas)


def _promise(group: TaskGroup) -> str:
    promises = {"": "", "lease": "exclusively", "strict": "strictly exclusively"}
    once = "at most once" if group.at_most_once else ""
    return ", ".join(filter(None, (once, promises[group.exclusive])))


def _groups_section(job: Job, groups: list[TaskGroup], now: datetime) -> Table:
    notes = group_notes(groups, now)
    return Table(
        "Task groups",
        columns=("group", "tasks", "by state", "minimum", "runs", "waits because"),
        rows=[
            (
                group.name,
                _size(group),
                counts_badges(dict(enumerate(group.counts))),
                group.min_available if job.explicit_minimum or job.coscheduled else "all",
                _promise(group),
                notes.get(group.pk, ""),
            )
            for group in groups
        ],
    )
