"""Tasks: their state and why they wait, all their attempts, and their whole history."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import duration, instant, page_link, state_badge, with_note
from controlplane.admin.base import MonospaceText, ReadOnlyAdmin, Section, Table
from controlplane.admin.work.attempts import all_attempts, attempt_rows
from controlplane.admin.work.callbacks import callback_section
from controlplane.admin.work.one_offs import one_off_facts
from controlplane.admin.work.pending import task_notes, waiting_facts
from controlplane.admin.work.timeline import task_timeline
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Callback, OneOff, Task

_SHOWN_ATTEMPTS = 50


class OpenFilter(admin.SimpleListFilter):
    """Tasks that wait, or that hold a cell: partial indexes find both, whatever has piled up."""

    title = "what is open"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """The two choices."""
        return (("pending", "Waiting to be placed"), ("held", "On a cell"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The tasks chosen."""
        match self.value():
            case "pending":
                return queryset.filter(state=TaskState.PENDING, attempt_open=False)
            case "held":
                held = Attempt.objects.filter(released_at=None)
                return queryset.filter(pk__in=held.values("task_id"))
        return queryset


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
    list_filter = (OpenFilter,)
    list_select_related = ("job", "group")
    search_fields = ("pk",)
    search_help_text = "A task's number"
    defer_fields: ClassVar = ("job__spec", "job__annotation", "group__launch")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        """Exclude tasks of deleted jobs."""
        return super().get_queryset(request).visible()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        """Numbers alone."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if not term.isascii() or not term.isdigit() or len(term) > 18:
            return queryset.none(), False
        return queryset.filter(pk=int(term)), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Also the tasks of one job, which its page links to."""
        return lookup == "job__id__exact" or bool(super().lookup_allowed(lookup, value, request))

    def complete_rows(self, rows: list[Any]) -> None:
        """Fetch the current attempts of all rows at once, and why they wait."""
        attach_attempts(rows)
        notes = task_notes(rows, clock.now())
        for task in rows:
            task.shown_note = notes.get(task.pk, "")

    @admin.display(description="task", ordering="pk")
    def number(self, task: Task) -> int:
        """Its id."""
        return task.pk

    @admin.display(description="job")
    def job_link(self, task: Task) -> SafeString | str:
        """Its job."""
        return page_link("job", task.job_id, task.job)

    @admin.display(description="name")
    def name(self, task: Task) -> str:
        """Group and index."""
        return f"{task.group.name}.{task.index}"

    @admin.display(description="state")
    def shown_state(self, task: Task) -> SafeString:
        """Its state, and below it why it is pending or what went wrong."""
        note = task.shown_note or task.failure_reason  # type: ignore[attr-defined]
        return with_note(state_badge(task.state), note)

    @admin.display(description="cell")
    def cell(self, task: Task) -> SafeString | str:
        """Where its latest attempt is or was."""
        return cell_of(task)

    @admin.display(description="exit code")
    def exit_code(self, task: Task) -> int | None:
        """Of its latest attempt."""
        attempt = task.shown_attempt  # type: ignore[attr-defined]
        return None if attempt is None else attempt.exit_code

    @admin.display(description="took")
    def took(self, task: Task) -> str:
        """From its first start to its end."""
        return duration(task.started_at, task.finished_at)

    def heading(self, obj: Task) -> dict[str, Any]:
        """Its state, and why."""
        notes = task_notes([obj], clock.now())
        return {
            "title": f"{obj.group.name}.{obj.index} of {obj.job}",
            "badge": state_badge(obj.state),
            "notes": [*notes.values(), obj.failure_reason],
        }

    def facts(self, obj: Task) -> list[tuple[str, Any]]:
        """What it has used up, and when."""
        group = obj.group
        one_off = OneOff.objects.filter(pk=obj.pk).first() if obj.job.is_one_off else None
        return [
            ("task", obj.pk),
            ("job", page_link("job", obj.job_id, obj.job)),
            *one_off_facts(one_off, TaskState(obj.state)),
            ("attempts", obj.attempt_number),
            ("failures", f"{obj.failure_count} of {group.retries_failure} retries"),
            ("preemptions", f"{obj.preemption_count} of {group.retries_preemption} retries"),
            ("system failures", obj.system_failure_count),
            ("in a row", f"{obj.system_row} of {group.retries_system} retries"),
            ("crashes in a row", obj.consecutive_crashes),
            ("not before", instant(obj.not_before) if obj.not_before else None),
            ("first start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            *waiting_facts(obj, now=clock.now()),
        ]

    def sections(self, obj: Task) -> list[Section]:
        """Attempts, history, result."""
        attempts = list(
            Attempt.objects.filter(task=obj)
            .select_related("cell")
            .order_by("-number")[:_SHOWN_ATTEMPTS]
        )
        has_more = obj.attempt_number > len(attempts)
        sections: list[Section] = [
            Table(
                f"Attempts (the latest {_SHOWN_ATTEMPTS})" if has_more else "Attempts",
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
                empty="never placed so far",
            ),
            task_timeline(obj),
        ]
        if attempts and attempts[0].result:
            cut = " (its first 10 KB)" if attempts[0].result_truncated else ""
            sections.insert(1, MonospaceText(f"Result{cut}", text=attempts[0].result))
        if obj.job.callback_on:
            told = Callback.objects.filter(job_id=obj.job_id, task_id=obj.pk)
            sections += callback_section(told)
        return sections


def attach_attempts(tasks: Iterable[Task]) -> None:
    """Give each task its latest attempt with its cell as `shown_attempt`, in one statement."""
    wanted = {task.attempt_uid: task for task in tasks if task.attempt_uid}
    for task in tasks:
        task.shown_attempt = None  # type: ignore[attr-defined]
    for attempt in Attempt.objects.filter(pk__in=list(wanted)).select_related("cell"):
        wanted[attempt.pk].shown_attempt = attempt  # type: ignore[attr-defined]


def cell_of(task: Task) -> SafeString | str:
    """A link to the cell of a task's latest attempt."""
    attempt: Attempt | None = task.shown_attempt  # type: ignore[attr-defined]
    return page_link("cell", attempt and attempt.cell_id, attempt and attempt.cell.name)
