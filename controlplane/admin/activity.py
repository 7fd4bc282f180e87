"""The activity page: the newest changes of all jobs, or on one cell, as they happen."""

from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, page_link, state_badge, with_note
from controlplane.admin.base import Table
from controlplane.admin.lists.paging import Chip
from controlplane.admin.live import respond_live
from controlplane.domain.state.states import REASONS, Reason
from controlplane.domain.timeline import Change
from controlplane.models import Cell, Job
from controlplane.queries.pages.activity import KINDS, SCANNED, ActivityFilter, load_activity
from controlplane.queries.pages.versions import HistoryScope

_SHOWN = 100
_MAX_ID = (1 << 63) - 1
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def show_activity(request: HttpRequest) -> HttpResponse:
    """Return the page, which refreshes itself: `cell`, `kind` and `before` are in its address."""
    if not request.user.has_perm("controlplane.view_job"):
        raise PermissionDenied
    name, kind = request.GET.get("cell", ""), request.GET.get("kind", "")
    reason, since = request.GET.get("reason", ""), request.GET.get("since", "")
    is_storable = "\x00" not in name
    cell = Cell.objects.filter(name=name).first() if name and is_storable else None
    before = _number(request.GET.get("before"))
    if (name and cell is None) or kind not in {"", *KINDS} or reason not in {"", *REASONS}:
        raise Http404("there is no such cell, kind of changes or reason")
    chosen = {"cell": name, "kind": kind, "reason": reason, "since": since}
    wanted = ActivityFilter(cell.pk if cell else None, kind or None, reason or None, _at(since))
    shown = {key: value for key, value in chosen.items() if value}
    respond = partial(_render, request, wanted, shown, before)
    return respond_live(request, respond, scope=HistoryScope())


def activity_link(text: str, **filters: str) -> SafeString:
    """Return a link to the changes that match `filters`."""
    address = f"{reverse('admin:controlplane_activity')}{_address(**filters)}"
    return format_html('<a class="cellrun-link" href="{}">{}</a>', address, text)


def failures_address(*, kind: str, reason: str, since: datetime) -> str:
    """Return the URL of the failures for a reason since an instant."""
    at = since.astimezone(UTC).strftime(_FORMAT)
    return reverse("admin:controlplane_activity") + _address(kind=kind, reason=reason, since=at)


def _at(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        raise Http404("since must be an instant such as 2026-11-20T12:00:00Z") from None


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _MAX_ID):
        raise Http404("before must be the id of a change")
    return int(text)


def _render(
    request: HttpRequest, wanted: ActivityFilter, filters: dict[str, str], before: int | None
) -> HttpResponse:
    found = load_activity(wanted, before=before, limit=_SHOWN)
    kind, cell = filters.get("kind", ""), filters.get("cell", "")
    others = {key: value for key, value in filters.items() if key != "kind"}
    chips = [
        Chip(name or "all", _address(**others, **({"kind": name} if name else {})), name == kind)
        for name in ("", *KINDS)
    ]
    older = _address(**filters, before=found.following) if found.following else ""
    changes = Table(
        "Changes",
        columns=("when", "job and task", "change", "reason", "cell", "by"),
        rows=[_row(change, job) for change, job in found.changes],
        empty=f"none among the last {SCANNED:,} changes" if older else "none",
        more=("older changes", older) if older else None,
    )
    context = {
        **admin.site.each_context(request),
        "title": f"Activity on cell {cell}" if cell else "Activity",
        "subtitle": None,
        "opts": Job._meta,
        "media": admin.site._registry[Job].media,
        "cell": page_link("cell", wanted.cell_id, cell) if cell else "",
        "whole": _address(**{key: it for key, it in filters.items() if key != "cell"}),
        "reason": REASONS[Reason(wanted.reason)] if wanted.reason else "",
        "since": instant(wanted.since) if wanted.since else "",
        "any": _address(**{key: filters[key] for key in ("cell", "kind") if key in filters}),
        "newest": _address(**filters) if before is not None else "",
        "chips": chips,
        "changes": changes,
    }
    return TemplateResponse(request, "controlplane/activity.html", context)


def _address(**query: Any) -> str:
    return f"?{urlencode(query)}"


def _row(change: Change, job: str) -> tuple[Any, ...]:
    subject = page_link("job", change.job_id, f"{job} ({change.job_id})")
    if change.task_id is not None:
        name = change.task_name or f"task {change.task_id}"
        task = page_link("task", change.task_id, name)
        subject = format_html("{}<br><small>{}</small>", subject, task)
    reason = with_note(format_html("{}", change.sentence), change.message)
    actor = "" if change.shown_actor == change.cell else change.shown_actor
    return instant(change.at), subject, _states(change), reason, change.cell or "", actor


def _states(change: Change) -> SafeString | str:
    if change.enters and change.from_state is not None:
        return format_html("{} → {}", state_badge(change.from_state), state_badge(change.to_state))
    state = change.to_state if change.enters else change.attempt_state
    return "" if state is None else state_badge(state)
