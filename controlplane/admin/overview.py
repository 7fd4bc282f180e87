"""Render the overview page: pending and running work, cells and ticks."""

from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane import clock
from controlplane.admin.badges import (
    CALLBACK_COLOURS,
    CELL_COLOURS,
    LIFECYCLE_COLOURS,
    counts_badges,
    duration,
    figures,
    flag_badge,
    instant,
    length,
    page_link,
    state_badge,
)
from controlplane.admin.live import SHORT_AGE_SECONDS, respond_live
from controlplane.admin.ticks import longest_phases
from controlplane.contract.states import TaskState
from controlplane.domain.jobs.one_offs import Lifecycle
from controlplane.domain.state.states import COLOURS, CallbackState, CellState
from controlplane.models import Alert, Job, TickState
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.views.overviews import Overview, count_tasks_of_jobs, load_overview

_NEWEST_JOBS = 8
_NEWEST_ALERTS = 5
# A tick whose last run ended longer ago is stuck, or beat does not send it.
_TICK_LATE_SECONDS = 60


def show_overview(
    request: HttpRequest, extra_context: dict[str, Any] | None = None
) -> HttpResponse:
    """Return the overview page, which refreshes itself."""
    respond = partial(admin.site.__class__.index, admin.site, request, extra_context)
    return respond_live(request, respond, scope=HistoryScope(), max_age=SHORT_AGE_SECONDS)


def overview_context(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add the figures that the user may view (unfold's DASHBOARD_CALLBACK in the settings)."""
    may_view = {
        model: request.user.has_perm(f"controlplane.view_{model}")
        for model in ("task", "attempt", "cell", "callback", "oneoff", "alert", "tickstate", "job")
    }
    found = load_overview()
    context["may_view"] = may_view
    context["cards"] = [
        *(_task_cards(found) if may_view["task"] else ()),
        *(_attempt_cards(found) if may_view["attempt"] else ()),
    ]
    context["callback_cards"] = [
        *(_callback_cards(found) if may_view["callback"] else ()),
        *(_one_off_cards(found) if may_view["oneoff"] else ()),
    ]
    if may_view["cell"]:
        context["cell_cards"] = _cell_cards(found)
    if may_view["tickstate"]:
        now = clock.now()
        context["ticks"] = [_tick(tick, now) for tick in TickState.objects.order_by("name")]
    if may_view["alert"]:
        context["alerts"] = _newest_alerts()
        context["more_alerts"] = max(0, found.open_alerts - _NEWEST_ALERTS)
        context["alerts_address"] = reverse("admin:controlplane_alert_changelist") + "?open=yes"
    if may_view["job"]:
        context["jobs"] = _newest_jobs()
    return context


def _task_cards(found: Overview) -> list[dict[str, Any]]:
    tasks = reverse("admin:controlplane_task_changelist")
    address = f"{tasks}?open=pending"
    return [_card("pending", found.pending_tasks, COLOURS[TaskState.PENDING], address)]


def _attempt_cards(found: Overview) -> list[dict[str, Any]]:
    attempts = reverse("admin:controlplane_attempt_changelist")
    return [
        *(
            _card(
                state.name.lower(),
                found.active.get(state, 0),
                COLOURS[state],
                f"{attempts}?state__exact={int(state)}&held=yes",
            )
            for state in (TaskState.ASSIGNED, TaskState.BUILDING, TaskState.RUNNING)
        ),
        _card("stopping", found.stopping, COLOURS[TaskState.KILLED], f"{attempts}?held=yes"),
    ]


def _cell_cards(found: Overview) -> list[dict[str, Any]]:
    cells = reverse("admin:controlplane_cell_changelist") + "?state__exact="
    return [
        _card(state.lower(), number, CELL_COLOURS[CellState(state)], cells + state)
        for state, number in found.cells.items()
    ]


def _callback_cards(found: Overview) -> list[dict[str, Any]]:
    callbacks = reverse("admin:controlplane_callback_changelist")
    return [
        _card(
            name,
            found.callbacks[state],
            CALLBACK_COLOURS[state],
            f"{callbacks}?state__exact={state}",
        )
        for name, state in (
            ("callbacks waiting", CallbackState.WAITING),
            ("callbacks being tried", CallbackState.CLAIMED),
        )
    ]


def _one_off_cards(found: Overview) -> list[dict[str, Any]]:
    resolving = reverse("admin:controlplane_oneoff_changelist") + "?resolving=yes"
    colour = LIFECYCLE_COLOURS[Lifecycle.RESOLVING]
    return [_card("tasks resolving", found.resolving, colour, resolving)]


def _newest_alerts() -> list[dict[str, Any]]:
    return [
        {
            "kind": page_link("alert", alert.pk, alert.kind),
            "subject": alert.subject,
            "text": alert.text,
            "raised": instant(alert.raised_at),
        }
        for alert in Alert.objects.filter(cleared_at=None).order_by("-id")[:_NEWEST_ALERTS]
    ]


def _newest_jobs() -> list[dict[str, Any]]:
    jobs = list(
        Job.objects.visible().defer("spec").select_related("pool").order_by("-id")[:_NEWEST_JOBS]
    )
    counts = count_tasks_of_jobs([job.pk for job in jobs])
    return [
        {
            "name": page_link("job", job.pk, job),
            "state": state_badge(job.state),
            "tasks": counts_badges(counts[job.pk]),
            "pool": job.pool,
            "created": instant(job.created_at),
        }
        for job in jobs
    ]


def _card(name: str, number: int, colour: str, address: str) -> dict[str, Any]:
    return {"name": name, "number": number, "colour": colour, "address": address}


def _tick(tick: TickState, now: datetime) -> dict[str, Any]:
    late = tick.finished_at is None or (now - tick.finished_at).total_seconds() > _TICK_LATE_SECONDS
    return {
        "name": tick.name,
        "badge": flag_badge("late" if late else "on time", good=not late),
        "finished": instant(tick.finished_at),
        "took": duration(tick.started_at, tick.finished_at),
        "lag": length(tick.lag_seconds),
        "phases": longest_phases(tick.phases),
        "did": figures(tick.counts),
        "page": page_link("tickstate", tick.name, tick.name),
    }
