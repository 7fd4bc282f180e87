"""Admin pages of cells: resources, usage and operators' actions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
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
    flower_link,
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
    column,
    confirmed_action,
    loaded_column,
)
from controlplane.admin.cells.attempts import attempt_sections, image_failures, system_failures
from controlplane.admin.cells.capacity import SPAN, capacity_charts
from controlplane.admin.cells.changes import BEFORE, changes_table
from controlplane.admin.cells.drain import drain_progress, summary
from controlplane.admin.cells.enrolment import EnrolmentForm, initial_enrolment
from controlplane.admin.fields import read_deadline, read_reason
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.commands.cells.enrolment import EnrolmentChange, change_enrolment
from controlplane.commands.cells.operate import (
    cordon_cell,
    drain_cell,
    revoke_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.domain.cells.enrolment import describe_hold
from controlplane.domain.errors import Conflict
from controlplane.domain.state.states import CellState, Quarantine
from controlplane.models import Cell
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.cells.drain import DrainProgress, load_drains
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.views.overviews import count_held_attempts
from controlplane.spec import InvalidSpec
from controlplane.spec.placing import OWN_TAGS


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
    actions = (
        "drain",
        "change_deadline",
        "cordon",
        "uncordon",
        "unquarantine",
        "enrolment",
        "revoke",
    )

    def load(self, rows: list[Any]) -> dict[int, tuple[dict[str, int], int, DrainProgress | None]]:
        """Return for each cell its used resources, how many attempts hold them, and its drain."""
        ids = [cell.pk for cell in rows]
        usage, held, drains = load_usage(ids), count_held_attempts(ids), load_drains(ids)
        return {key: (usage.get(key, {}), held.get(key, 0), drains.get(key)) for key in ids}

    shown_state = loaded_column(lambda cell, loaded: _state(cell, loaded[2]), "state")
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
        " at the deadline are stopped; their tasks run on other cells and use none of their"
        " retries.",
        button="Drain",
        done="Cells ordered to drain",
        fields=("reason", "minutes"),
    )
    def drain(self, request: HttpRequest, cell: Cell) -> None:
        """Order a drain with the deadline of the form."""
        drain_cell(**_order(request, cell), deadline_seconds=read_deadline(request))

    @confirmed_action(
        "Change the deadline",
        title="Change the deadline of these drains?",
        text="The new deadline replaces the present one. Attempts that still run then are stopped;"
        " their tasks run on other cells and use none of their retries.",
        button="Change the deadline",
        done="Deadlines changed",
        fields=("reason", "minutes"),
    )
    def change_deadline(self, request: HttpRequest, cell: Cell) -> None:
        """Replace the deadline of a drain."""
        if CellState.DRAINING not in (cell.state, cell.ordered_state):
            raise Conflict(f"cell {cell.name} does not drain")
        drain_cell(**_order(request, cell), deadline_seconds=read_deadline(request))

    @confirmed_action(
        "Cordon",
        title="Cordon these cells?",
        text="The cells take no new work. Running attempts continue.",
        button="Cordon",
        done="Cells ordered to cordon",
        fields=("reason",),
    )
    def cordon(self, request: HttpRequest, cell: Cell) -> None:
        """Stop placement on a cell."""
        cordon_cell(**_order(request, cell))

    @confirmed_action(
        "Uncordon",
        title="Uncordon these cells?",
        text="The cells take new work again. Earlier failures on them no longer count.",
        button="Uncordon",
        done="Cells uncordoned",
        fields=("reason",),
    )
    def uncordon(self, request: HttpRequest, cell: Cell) -> None:
        """Resume placement on a cell."""
        uncordon_cell(**_order(request, cell))

    @confirmed_action(
        "Lift the quarantine",
        title="Lift the quarantine of these cells?",
        text="Repair the cause first: if it persists, tasks fail on these cells until they are in"
        " quarantine again. The cells leave quarantine. Earlier failures on them no longer count.",
        button="Lift the quarantine",
        done="Quarantines lifted",
        fields=("reason",),
    )
    def unquarantine(self, request: HttpRequest, cell: Cell) -> None:
        """Lift the quarantine of a cell."""
        unquarantine_cell(**_order(request, cell))

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
                return HttpResponseRedirect(self.return_url(request, chosen))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Change the enrolment of {cell.name}",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "form": form,
            "cell": cell,
            **self.form_context(request, chosen),
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
        reason, actor = read_reason(request), str(request.user)
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
                return ["change_deadline", "uncordon", "enrolment", "revoke"]
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
            ("Flower", flower_link(f"worker/cell@{obj.name}")),
            ("attempts", _held_attempts(obj)),
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

    def leading_sections(self, request: HttpRequest, obj: Cell) -> list[Section]:
        """Return the failures that are why it is in quarantine, and the progress of a drain."""
        sections: list[Section] = []
        is_failing = obj.state == CellState.QUARANTINED and obj.quarantined_for
        if is_failing == Quarantine.FAILURES and self._may_view_work(request):
            sections.append(system_failures(obj))
        found = load_drains([obj.pk]).get(obj.pk)
        if found is not None:
            is_linked = self.may_view(request, "attempt")
            sections.append(drain_progress(obj.pk, found, now=clock.now(), is_linked=is_linked))
        return sections

    def _may_view_work(self, request: HttpRequest) -> bool:
        return all(self.may_view(request, it) for it in ("attempt", "job", "task"))

    def sections_for(self, request: HttpRequest, obj: Cell) -> list[Section]:
        """Return what runs, the last hour, resources, failed images and changes of the cell.

        Attempts are shown to users who may view all that they link to.
        """
        now = clock.now()
        may_view_work = self._may_view_work(request)
        before = request.GET.get(BEFORE)
        changes = changes_table(obj, before, may_view_audit=self.may_view(request, "auditline"))
        return [
            *(attempt_sections(obj, now=now) if may_view_work else ()),
            capacity_charts(obj.pk, request.GET.get(SPAN), now=now),
            *([image_failures(obj, now=now)] if may_view_work else ()),
            changes,
        ]

    def history_scope(self, obj: Cell) -> HistoryScope:
        """Return the whole history, whose rows do not have their cell, and the cell's changes."""
        return HistoryScope(cell_id=obj.pk)


def _state(cell: Cell, drain: DrainProgress | None) -> SafeString | str:
    """Return the state with its reason; of a draining cell also what is left."""
    if drain is None or cell.state != CellState.DRAINING:
        return with_note(_badges(cell), cell.state_reason)
    note = format_html("{} ({})", summary(drain), cell.state_reason)
    return with_note(_badges(cell), note)


def _held_attempts(cell: Cell) -> SafeString:
    number = count_held_attempts([cell.pk]).get(cell.pk, 0)
    text, address = list_link(
        "attempt", f"{number} hold capacity", held="yes", cell__id__exact=cell.pk
    )
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def _order(request: HttpRequest, cell: Cell) -> dict[str, Any]:
    """Return the arguments of an order, with the reason of the form."""
    reason = read_reason(request)
    return {"name": cell.name, "actor": str(request.user), "reason": reason, "now": clock.now()}


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
    # 0.0 is added since a small negative number is rounded to -0.0.
    return None if value is None else f"{round(value, 1) + 0.0:+.1f} s"


def _meter(cell: Cell, usage: Mapping[str, int], name: str) -> SafeString | str:
    capacity = cell.capacity.get(name, 0)
    return meter(name, usage.get(name, 0), capacity) if capacity else NOTHING
