"""Admin pages of attempts: cell, container and outcome, and the release of attempts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Q, QuerySet, When
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Left
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
)
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import (
    NOTHING,
    duration,
    flower_link,
    instant,
    list_link,
    page_link,
    quantities,
    state_badge,
    with_note,
)
from controlplane.admin.base import (
    MonospaceText,
    ReadOnlyAdmin,
    Section,
    column,
    confirmed_action,
)
from controlplane.admin.fields import read_reason
from controlplane.admin.sections.commands import attempt_commands
from controlplane.admin.sections.exec_sessions import exec_sections
from controlplane.admin.sections.output import output_response, output_section
from controlplane.admin.sections.retry_rules import describe_action
from controlplane.admin.sections.usage import usage_sections
from controlplane.admin.sections.waterfall import waterfall_sections
from controlplane.admin.work.artifacts import (
    PREVIEW,
    artifact_browser,
    artifact_preview,
    image_response,
)
from controlplane.admin.work.filters.attempts import (
    AttemptStateFilter,
    HeldFilter,
    ImageFailureFilter,
)
from controlplane.admin.work.timeline import attempt_timeline
from controlplane.commands.attempts.release import release_attempt
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.domain.errors import Conflict
from controlplane.domain.state.exit_statuses import explain_exit_status, with_signal
from controlplane.domain.state.states import text_of_reason
from controlplane.models import Attempt, CacheEntry, Task
from controlplane.queries.attempts.artifacts import describe_artifacts
from controlplane.queries.attempts.group_specs import browser_link
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.search import find_attempt_uids
from controlplane.queries.views.attempts import find_newest_attempts

# The shown part of a result in a list of tasks.
_RESULT_CHARS = 400
_LINE_FIELDS = (
    "task_id",
    "number",
    "state",
    "phase",
    "progress",
    "exit_code",
    "reason",
    "message",
    "created_at",
    "started_at",
    "finished_at",
    "cell__name",
)


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    """Attempts, newest first: their uids grow with time."""

    ordering: ClassVar = ("-uid",)
    list_display = (
        "shown_uid",
        "job_link",
        "task_link",
        "number",
        "shown_state",
        "cell_link",
        "exit_code",
        "created",
        "took",
        "flower",
    )
    sortable_by = ("shown_uid", "created")  # an index serves these
    list_filter = (AttemptStateFilter, HeldFilter, ImageFailureFilter)
    list_select_related = ("cell", "job", "group", "task")
    search_fields = ("uid",)
    search_help_text = "The first six or more digits of the uid of an attempt"
    defer_fields: ClassVar = (
        "result",
        "usage",
        "details",
        "job__spec",
        "job__annotation",
        "group__launch",
        "group__depends_on",
    )

    actions = ("release_attempts",)
    linked_lookups = (
        "cell__pool__id__exact",
        "group__launch__image",
        "job__band__exact",
        "released_at__gte",
        "task__id__exact",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        """Return the rows; of deleted jobs, only attempts that hold capacity of a cell."""
        visible = Q(job__deleted_at=None) | Q(released_at=None)
        return super().get_queryset(request).filter(visible)

    def matching(self, term: str) -> Q:
        """Match beginnings of uids."""
        return Q(pk__in=find_attempt_uids(term))

    shown_uid = column(
        lambda attempt: format_html('<span class="cellrun-uid">{}</span>', attempt.pk),
        "uid",
        ordering="uid",
    )
    job_link = column(lambda attempt: page_link("job", attempt.job_id, attempt.job), "job")
    task_link = column(
        lambda attempt: page_link("task", attempt.task_id, _task_name(attempt)), "task"
    )
    shown_state = column(lambda attempt: attempt_badge(attempt), "state")
    cell_link = column(
        lambda attempt: page_link("cell", attempt.cell_id, attempt.cell.name), "cell"
    )
    created = column(lambda attempt: instant(attempt.created_at), "created", ordering="uid")
    took = column(lambda attempt: duration(attempt.started_at, attempt.finished_at), "took")
    flower = column(lambda attempt: flower_link(f"task/{attempt.pk}"), "")

    @confirmed_action(
        "Release attempt",
        title="Release these attempts?",
        text="Make sure that the containers of these attempts are gone, since a release does not"
        " involve their cells: if a container still runs, its task may run twice. An attempt that"
        " has not ended cannot be released: cancel its job first.",
        button="Release attempts",
        done="Attempts released",
        fields=("reason",),
    )
    def release_attempts(self, request: HttpRequest, attempt: Attempt) -> None:
        """Release an ended attempt; the operator vouches that its container is gone."""
        reason = read_reason(request)
        if not reason:
            raise Conflict("a reason is required, because the history records it: enter one")
        actor = str(request.user)
        release_attempt(uid=attempt.pk, reason=reason, actor=actor, now=clock.now())

    def page_actions(self, obj: Attempt) -> list[str]:
        """Return the release for attempts that have ended and are not released."""
        return ["release_attempts"] if obj.finished_at and obj.released_at is None else []

    def history_scope(self, obj: Attempt) -> HistoryScope:
        """Return the history of the attempt's task."""
        return HistoryScope(task_id=obj.task_id)

    def heading(self, obj: Attempt) -> dict[str, Any]:
        """Return its state and the reason of its end."""
        return {
            "title": f"Attempt {obj.number} of {_task_name(obj)}, {obj.job}",
            "badge": attempt_badge(obj),
            "notes": [with_signal(reason_of(obj))],
        }

    def facts(self, obj: Attempt) -> list[tuple[str, Any]]:
        """Return its cell, its container, and how it ended."""
        return [
            ("uid", obj.pk),
            ("task", page_link("task", obj.task_id, _task_name(obj))),
            ("job", page_link("job", obj.job_id, obj.job)),
            ("cell", page_link("cell", obj.cell_id, obj.cell.name)),
            ("incarnation of the cell", obj.incarnation),
            ("container", obj.container_id),
            ("requests", request_of(obj)),
            ("exit code", _exit_code(obj)),
            ("failure kind", obj.failure_kind),
            ("charged to budget", obj.charged),
            ("retry rule", _retry_rule(obj)),
            ("created", instant(obj.created_at)),
            ("start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("released", _released(obj)),
            ("stop ordered because", obj.stop_reason),
            ("addresses", _pairs((obj.details or {}).get("addresses") or {})),
            ("Flower", flower_link(f"task/{obj.pk}")),
        ]

    def sections_for(self, request: HttpRequest, obj: Attempt) -> list[Section]:
        """Return its result, artifacts, the end of its output, its usage and its history.

        The query selects the artifact to preview.
        """
        sections: list[Section] = []
        if obj.result:
            cut = " (first 10 KiB)" if obj.result_truncated else ""
            sections.append(MonospaceText(f"Result{cut}", text=obj.result))
        if items := _artifacts(obj):
            sections.append(artifact_browser(obj.pk, items))
            if preview := artifact_preview(obj.pk, items, request.GET.get(PREVIEW, "")):
                sections.append(preview)
        steps = (obj.usage or {}).get("steps")
        return [
            *sections,
            output_section(obj),
            *exec_sections(obj.pk),
            *usage_sections(obj),
            *waterfall_sections([(f"#{obj.number}", obj, steps)], now=clock.now()),
            attempt_timeline(obj.pk),
            attempt_commands(obj),
        ]

    def get_urls(self) -> list[Any]:
        """Add the output and the artifacts of an attempt to the pages."""
        view = self.admin_site.admin_view
        return [
            path(
                "<uuid:uid>/output/<str:stream>",
                view(self.show_output),
                name="controlplane_attempt_output",
            ),
            path(
                "<uuid:uid>/artifacts/<path:name>",
                view(self.download_artifact),
                name="controlplane_attempt_artifact",
            ),
            path(
                "<uuid:uid>/images/<path:name>",
                view(self.show_image),
                name="controlplane_attempt_image",
            ),
            *super().get_urls(),
        ]

    def show_output(self, request: HttpRequest, uid: UUID, stream: str) -> HttpResponseBase:
        """Return a stream of an attempt as a file, or the part after an offset."""
        attempt = self.get_object(request, str(uid))
        if not self.has_view_permission(request, attempt):
            raise PermissionDenied
        if attempt is None:
            raise Http404(f"there is no attempt {uid}")
        return output_response(uid, stream, request.GET)

    def download_artifact(self, request: HttpRequest, uid: UUID, name: str) -> HttpResponse:
        """Redirect to an artifact, which the browser stores as a file."""
        item = self._find_artifact(request, uid, name)
        link = browser_link(uid, item, now=clock.now())
        if link is None:
            raise Http404(f"{name} is kept at {item['uri']}")
        return HttpResponseRedirect(link)

    def show_image(self, request: HttpRequest, uid: UUID, name: str) -> HttpResponse:
        """Return an artifact that is an image."""
        self._find_artifact(request, uid, name)
        return image_response(uid, name)

    def _find_artifact(self, request: HttpRequest, uid: UUID, name: str) -> Mapping[str, Any]:
        """Return an artifact of an attempt that the user may view. Raise Http404."""
        attempt = self.get_object(request, str(uid))
        if not self.has_view_permission(request, attempt):
            raise PermissionDenied
        if attempt is not None:
            items = _artifacts(attempt)
        else:  # its files may belong to an entry of the cache
            kept = CacheEntry.objects.filter(attempt_uid=uid).values_list("outputs", flat=True)
            items = items_of(uid, kept.first())
        for item in items:
            if item["name"] == name:
                return item
        raise Http404(f"attempt {uid} has no artifact {name}")


def _pairs(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in mapping.items())


def _retry_rule(attempt: Attempt) -> str:
    """Return the rule of the group that decided on the end: `rule 2 of on_exit: fail`."""
    number, rules = attempt.retry_rule, attempt.group.retry_rules or []
    if number is None or number > len(rules):
        return ""
    rule = rules[number - 1]
    conditions = [f"{name} {rule[name]}" for name in ("codes", "reason") if name in rule]
    return f"rule {number} of on_exit ({', '.join(conditions)}): {describe_action(rule)}"


def request_of(row: Attempt | Task) -> str:
    """Return the request of a task or attempt: `… (increased by retry rules from …)`."""
    if row.resources is None:
        return quantities(row.group.resources)
    before = quantities(row.group.resources)
    return f"{quantities(row.resources)} (increased by retry rules from {before})"


def attempt_rows(attempts: Iterable[Attempt]) -> list[tuple[Any, ...]]:
    """Return the rows of a task's table of attempts."""
    return [
        (
            page_link("attempt", attempt.pk, attempt.number),
            attempt_badge(attempt),
            page_link("cell", attempt.cell_id, attempt.cell.name),
            _exit_code(attempt),
            reason_of(attempt),
            instant(attempt.started_at),
            duration(attempt.started_at, attempt.finished_at),
            _released(attempt),
            flower_link(f"task/{attempt.pk}"),
        )
        for attempt in attempts
    ]


def newest_attempts(task_ids: Sequence[int], *, each: int) -> dict[int, list[Attempt]]:
    """Return the newest attempts of each task, at most `each`, with their cells, in two statements.

    `shown_result` of an attempt is the beginning of its result, `steps` those of its usage.
    """
    has_result = When(state=TaskState.SUCCEEDED, then=Left("result", _RESULT_CHARS))
    found = (
        Attempt.objects.filter(pk__in=find_newest_attempts(task_ids, each=each))
        .select_related("cell")
        .only(*_LINE_FIELDS)
        .annotate(shown_result=Case(has_result), steps=KeyTransform("steps", "usage"))
        .order_by("-number")
    )
    newest: dict[int, list[Attempt]] = {task_id: [] for task_id in task_ids}
    for attempt in found:
        newest[attempt.task_id].append(attempt)
    return newest


def all_attempts(task: Task) -> tuple[str, str]:
    """Return the text and the URL of the list of a task's attempts."""
    return list_link("attempt", f"all {task.attempt_number} attempts", task__id__exact=task.pk)


def attempt_badge(attempt: Attempt) -> SafeString:
    """Return its state with its note."""
    return with_note(state_badge(attempt.state), attempt_note(attempt))


def attempt_note(attempt: Attempt) -> str:
    """Return the note on its state: a worker failure (Iris), or the phase while BUILDING."""
    if attempt.state == TaskState.WORKER_FAILED:
        return "(worker failure)"
    if attempt.state != TaskState.BUILDING or not attempt.phase:
        return ""
    return attempt.phase if attempt.progress is None else f"{attempt.phase} {attempt.progress} %"


def reason_of(attempt: Attempt) -> str:
    """Return why it ended: its message, or the text of its reason."""
    if attempt.message:
        return attempt.message
    return text_of_reason(attempt.reason)


def _artifacts(attempt: Attempt) -> list[dict[str, Any]]:
    return items_of(attempt.pk, (attempt.details or {}).get("outputs"))


def items_of(uid: UUID, outputs: Any) -> list[dict[str, Any]]:
    """Return the artifacts of an attempt, as the API describes them."""
    return describe_artifacts(uid, outputs, base=path_of(str(uid), ""))


def _exit_code(attempt: Attempt) -> str:
    if attempt.exit_code is None:
        return ""
    explained = explain_exit_status(attempt.exit_code)
    return f"{attempt.exit_code} ({explained})" if explained else str(attempt.exit_code)


def _released(attempt: Attempt) -> SafeString | str:
    if attempt.released_at is None:
        return "not yet" if attempt.finished_at else NOTHING
    return with_note(instant(attempt.released_at), attempt.release_kind)  # type: ignore[arg-type]


def _task_name(attempt: Attempt) -> str:
    return f"{attempt.group.name}.{attempt.task.index}"
