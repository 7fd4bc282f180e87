"""Render the overview page: what needs attention first, then work, cells and ticks."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane import clock
from controlplane.admin.alerts.subjects import subject_links
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
from controlplane.admin.overview.cells import SHOWN_CELLS, cell_bars
from controlplane.admin.overview.hour import charts, failures
from controlplane.admin.overview.work import (
    count_cards,
    longest_running,
    oldest_waiting,
    work_bars,
)
from controlplane.admin.ticks import longest_phases
from controlplane.domain.jobs.one_offs import Lifecycle
from controlplane.domain.state.states import CallbackState, CellState
from controlplane.models import Alert, Job, TickState
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.pages.work import load_work
from controlplane.queries.views.overviews import (
    count_callbacks,
    count_cells,
    count_open_alerts,
    count_resolving,
    count_tasks_of_jobs,
)

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
    now = clock.now()
    context["may_view"] = may_view
    if may_view["task"] or may_view["attempt"]:
        counts = load_work()
        context["cards"] = count_cards(counts, may_view)
        context["bars"] = work_bars(counts, may_view)
        context["sampled"] = instant(counts.sampled_at) if counts.sampled_at else ""
    if may_view["task"]:
        context["charts"] = charts(now)
    # Rows are shown to users that may view all that the rows link to.
    if may_view["task"] and may_view["job"]:
        context["oldest"] = oldest_waiting(now)
        if may_view["attempt"] and may_view["cell"]:
            context["longest"] = longest_running()
    context["callback_cards"] = [
        *(_callback_cards() if may_view["callback"] else ()),
        *(_one_off_cards() if may_view["oneoff"] else ()),
    ]
    if may_view["cell"]:
        context["cell_cards"] = _cell_cards()
        context["cells"] = cell_bars(now)
        context["more_cells"] = sum(card["number"] for card in context["cell_cards"]) - SHOWN_CELLS
    if may_view["tickstate"]:
        context["ticks"] = [_tick(tick, now) for tick in TickState.objects.order_by("name")]
    if may_view["alert"]:
        context["alerts"] = _newest_alerts(request)
        context["more_alerts"] = max(0, count_open_alerts() - _NEWEST_ALERTS)
        context["alerts_address"] = reverse("admin:controlplane_alert_changelist") + "?open=yes"
    if may_view["job"]:
        context["jobs"] = _newest_jobs(may_view)
        context["failures"] = failures(now)
    return context


def _cell_cards() -> list[dict[str, Any]]:
    cells = reverse("admin:controlplane_cell_changelist") + "?state__exact="
    return [
        _card(state.lower(), number, CELL_COLOURS[CellState(state)], cells + state)
        for state, number in count_cells().items()
    ]


def _callback_cards() -> list[dict[str, Any]]:
    found = count_callbacks(CallbackState.WAITING, CallbackState.CLAIMED)
    callbacks = reverse("admin:controlplane_callback_changelist")
    return [
        _card(
            name,
            found[state],
            CALLBACK_COLOURS[state],
            f"{callbacks}?state__exact={state}",
        )
        for name, state in (
            ("callbacks waiting", CallbackState.WAITING),
            ("callbacks being tried", CallbackState.CLAIMED),
        )
    ]


def _one_off_cards() -> list[dict[str, Any]]:
    resolving = reverse("admin:controlplane_oneoff_changelist") + "?resolving=yes"
    colour = LIFECYCLE_COLOURS[Lifecycle.RESOLVING]
    return [_card("tasks resolving", count_resolving(), colour, resolving)]


def _newest_alerts(request: HttpRequest) -> list[dict[str, Any]]:
    alerts = list(Alert.objects.filter(cleared_at=None).order_by("-id")[:_NEWEST_ALERTS])
    subjects = subject_links(alerts, request.user)
    return [
        {
            "kind": page_link("alert", alert.pk, alert.kind),
            "subject": subjects[alert.pk],
            "text": alert.text,
            "raised": instant(alert.raised_at),
        }
        for alert in alerts
    ]


def _newest_jobs(may_view: Mapping[str, bool]) -> list[dict[str, Any]]:
    jobs = list(
        Job.objects.visible().defer("spec").select_related("pool").order_by("-id")[:_NEWEST_JOBS]
    )
    counts = count_tasks_of_jobs([job.pk for job in jobs])
    return [
        {
            "name": page_link("job", job.pk, job),
            "state": state_badge(job.state),
            "tasks": counts_badges(
                counts[job.pk], **({"job__id__exact": job.pk} if may_view["task"] else {})
            ),
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
