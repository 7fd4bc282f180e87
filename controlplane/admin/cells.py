"""Admin pages of cells: resources, usage and operators' actions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.activity import activity_link
from controlplane.admin.badges import (
    CELL_COLOURS,
    NOTHING,
    cell_badge,
    count_link,
    flag_badge,
    instant,
    list_link,
    meter,
    page_link,
    quantities,
    with_note,
)
from controlplane.admin.base import (
    ReadOnlyAdmin,
    Section,
    StateFilter,
    Table,
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.admin.enrolment import EnrolmentForm, initial_enrolment
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.admin.work.attempts import attempt_badge
from controlplane.commands.cells.enrolment import EnrolmentChange, change_enrolment
from controlplane.commands.cells.operate import (
    cordon_cell,
    drain_cell,
    revoke_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.domain.cells.enrolment import describe_hold
from controlplane.domain.state.states import CellState
from controlplane.models import Attempt, Cell
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.views.overviews import count_held_attempts
from controlplane.spec import InvalidSpec
from controlplane.spec.placing import OWN_TAGS

_SHOWN_ATTEMPTS = 100


class CellStateFilter(StateFilter):
    """A filter by the state of cells."""

    colours: ClassVar[Mapping[str, str]] = {state.value: it for state, it in CELL_COLOURS.items()}

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the states in the order of their colours."""
        return [(state.value, state.value.lower()) for state in CELL_COLOURS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the cells in the selected state."""
        return queryset if self.value() is None else queryset.filter(state=self.value())


@admin.register(Cell)
class CellAdmin(ReadOnlyAdmin):
    """Cells by name."""

    ordering: ClassVar = ("name",)
    max_age: ClassVar = SHORT_AGE_SECONDS
    list_display = (
        "name",
        "shown_state",
        "pool",
        "cpu",
        "memory",
        "held",
        "drivers",
        "last_message",
    )
    list_filter = (CellStateFilter, "pool")
    list_select_related = ("pool", "lease")
    list_per_page = 100
    search_fields = ("name",)
    actions = ("drain", "cordon", "uncordon", "unquarantine", "enrolment", "revoke")

    def load(self, rows: list[Any]) -> dict[int, tuple[dict[str, int], int]]:
        """Return for each cell its used resources and the number of attempts that hold them."""
        ids = [cell.pk for cell in rows]
        usage, held = load_usage(ids), count_held_attempts(ids)
        return {key: (usage.get(key, {}), held.get(key, 0)) for key in ids}

    shown_state = column(lambda cell: with_note(_badges(cell), cell.state_reason), "state")
    last_message = column(
        lambda cell: instant(cell.lease.last_message_at) if hasattr(cell, "lease") else "never",
        "last heartbeat",
    )

    cpu = loaded_column(lambda cell, loaded: _meter(cell, loaded[0], "cpu_millis"), "cpu in use")
    memory = loaded_column(
        lambda cell, loaded: _meter(cell, loaded[0], "memory_mib"), "memory in use"
    )
    held = loaded_column(
        lambda cell, loaded: count_link("attempt", loaded[1], held="yes", cell__id__exact=cell.pk),
        "attempts",
    )

    @confirmed_action(
        "Drain",
        title="Drain these cells?",
        text="The cells take no new work, and their attempts may finish. Attempts that still run"
        " after 1 hour are stopped; their tasks run on other cells and use none of their retries.",
        button="Drain",
        done="Cells ordered to drain",
    )
    def drain(self, request: HttpRequest, cell: Cell) -> None:
        """Order a drain with the default deadline."""
        drain_cell(name=cell.name, actor=str(request.user), now=clock.now())

    @confirmed_action(
        "Cordon",
        title="Cordon these cells?",
        text="The cells take no new work. Running attempts continue.",
        button="Cordon",
        done="Cells ordered to cordon",
    )
    def cordon(self, request: HttpRequest, cell: Cell) -> None:
        """Stop placement on a cell."""
        cordon_cell(name=cell.name, actor=str(request.user), now=clock.now())

    @confirmed_action(
        "Uncordon",
        title="Uncordon these cells?",
        text="The cells take new work again. Earlier failures on them no longer count.",
        button="Uncordon",
        done="Cells uncordoned",
    )
    def uncordon(self, request: HttpRequest, cell: Cell) -> None:
        """Resume placement on a cell."""
        uncordon_cell(name=cell.name, actor=str(request.user), now=clock.now())

    @confirmed_action(
        "Lift the quarantine",
        title="Lift the quarantine of these cells?",
        text="The cells leave quarantine. Earlier failures on them no longer count.",
        button="Lift the quarantine",
        done="Quarantines lifted",
    )
    def unquarantine(self, request: HttpRequest, cell: Cell) -> None:
        """Lift the quarantine of a cell."""
        unquarantine_cell(name=cell.name, actor=str(request.user), now=clock.now())

    @admin.action(description="Change the enrolment", permissions=["operate"])
    def enrolment(self, request: HttpRequest, rows: QuerySet[Cell]) -> HttpResponse | None:
        """Show a form with what operators fix of a cell; change the cell when it is sent."""
        chosen = list(rows.select_related("pool")[:2])
        if len(chosen) != 1:
            self.message_user(request, "Select one cell.", messages.ERROR)
            return None
        [cell] = chosen
        is_sent = request.POST.get("confirmed") == "yes"
        form = EnrolmentForm(request.POST if is_sent else None, initial=initial_enrolment(cell))
        if is_sent and form.is_valid():
            change, actor = EnrolmentChange(**form.cleaned_data), str(request.user)
            try:
                change_enrolment(name=cell.name, change=change, actor=actor, now=clock.now())
            except InvalidSpec as error:
                form.add_error(None, str(error))
            else:
                text = f"Enrolment of {cell.name} changed"
                self.message_user(request, text, messages.SUCCESS)
                return None
        context = {
            **self.admin_site.each_context(request),
            "title": f"Change the enrolment of {cell.name}",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "cell": cell,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "list_url": self.list_url(),
        }
        return TemplateResponse(request, "controlplane/enrolment.html", context)

    @confirmed_action(
        "Revoke the key",
        title="Revoke the keys of these cells?",
        text="Messages and requests of the cells are ignored from now on, and they get none. Their"
        " tasks run on other cells, even if their containers still run; exclusive tasks wait for"
        " the end of the lease. The command manage.py enroll_cell NAME --renew makes a new key.",
        button="Revoke the keys",
        done="Keys revoked",
        fields=("reason",),
    )
    def revoke(self, request: HttpRequest, cell: Cell) -> None:
        """Revoke the key of a cell."""
        reason, actor = request.POST.get("reason", ""), str(request.user)
        revoke_cell(name=cell.name, actor=actor, reason=reason, now=clock.now())

    def page_actions(self, obj: Cell) -> list[str]:
        """Return the actions that change the present state."""
        if obj.revoked_at is not None:
            return []
        match CellState(obj.state):
            case CellState.READY:
                return ["cordon", "drain", "enrolment", "revoke"]
            case CellState.CORDONED:
                return ["uncordon", "drain", "enrolment", "revoke"]
            case CellState.DRAINING:
                return ["uncordon", "enrolment", "revoke"]
            case CellState.QUARANTINED:
                return ["unquarantine", "cordon", "drain", "enrolment", "revoke"]
            case _:
                return ["enrolment", "revoke"]

    def heading(self, obj: Cell) -> dict[str, Any]:
        """Return its state and the reason."""
        return {
            "title": f"Cell {obj.name}",
            "badge": _badges(obj),
            "notes": list(dict.fromkeys(filter(None, (obj.state_reason, self._held(obj))))),
        }

    @staticmethod
    def _held(cell: Cell) -> str:
        return describe_hold(cell.mismatch) if cell.mismatch else ""

    def facts(self, obj: Cell) -> list[tuple[str, Any]]:
        """Return the cell's resources and its last heartbeat."""
        lease = getattr(obj, "lease", None)
        used = load_usage([obj.pk]).get(obj.pk, {})
        return [
            ("pool", page_link("pool", obj.pool_id, obj.pool)),
            ("activity", activity_link("changes on this cell", cell=obj.name)),
            ("capacity", quantities(obj.capacity)),
            ("maximum capacity", quantities(obj.max_capacity)),
            ("in use", quantities(used) or "nothing"),
            ("labels", ", ".join(f"{k}={v}" for k, v in obj.labels.items())),
            ("tags", ", ".join(obj.tags)),
            ("fixed tags", _fixed_tags(obj)),
            ("drivers", ", ".join(obj.drivers)),
            ("task types", ", ".join(obj.task_types)),
            ("versions", ", ".join(f"{k} {v}" for k, v in obj.versions.items())),
            ("incarnation", obj.incarnation),
            ("enrolled", instant(obj.enrolled_at)),
            ("registered", instant(obj.registered_at)),
            ("key revoked", instant(obj.revoked_at)),
            ("next key is discarded at", instant(obj.next_key_until)),
            ("last heartbeat", instant(lease.last_message_at) if lease else "never"),
            ("lease expires", instant(lease.expires_at) if lease else None),
            ("ordered state", obj.ordered_state if obj.state != obj.ordered_state else None),
            ("drain deadline", instant(obj.drain_deadline_at)),
            ("in quarantine until", instant(obj.quarantined_until)),
            (
                "clock ahead of the control plane by",
                _seconds(lease.clock_ahead_seconds) if lease else None,
            ),
        ]

    def sections(self, obj: Cell) -> list[Section]:
        """Return the attempts that hold capacity of the cell."""
        found = list(
            Attempt.objects.filter(cell=obj, released_at=None)
            .select_related("job", "group", "task")
            .defer("result", "usage", "job__spec", "group__launch")
            .order_by("-uid")[: _SHOWN_ATTEMPTS + 1]
        )
        rows = [
            (
                page_link("attempt", attempt.pk, attempt.pk),
                page_link("job", attempt.job_id, attempt.job),
                page_link("task", attempt.task_id, f"{attempt.group.name}.{attempt.task.index}"),
                attempt_badge(attempt),
                quantities(attempt.group.resources),
                instant(attempt.created_at),
            )
            for attempt in found[:_SHOWN_ATTEMPTS]
        ]
        more = list_link("attempt", "All these attempts", held="yes", cell__id__exact=obj.pk)
        return [
            Table(
                "Attempts that hold capacity",
                columns=("attempt", "job", "task", "state", "holds", "since"),
                rows=rows,
                more=more if len(found) > _SHOWN_ATTEMPTS else None,
            )
        ]


def _fixed_tags(cell: Cell) -> str:
    return "" if cell.fixed_tags == [OWN_TAGS] else ", ".join(cell.fixed_tags) or "none"


def _badges(cell: Cell) -> SafeString:
    """Return the state, or REVOKED; and whether the cell sent no message for two heartbeats."""
    if cell.revoked_at is not None:
        return flag_badge("REVOKED", good=False)
    badge = cell_badge(cell.state)
    lease = getattr(cell, "lease", None)
    if lease is None or not lease.silent_ticks or cell.state == CellState.LOST:
        return badge
    return format_html("{} {}", badge, flag_badge("silent", good=False))


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1f} s"


def _meter(cell: Cell, usage: Mapping[str, int], name: str) -> SafeString | str:
    capacity = cell.capacity.get(name, 0)
    return meter(name, usage.get(name, 0), capacity) if capacity else NOTHING
