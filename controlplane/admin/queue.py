"""The queue page of a pool: the order of the next pass, what is held, and the actions on both."""

from dataclasses import replace
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from controlplane import clock
from controlplane.admin.badges import count_link, instant, page_link
from controlplane.admin.base import Table
from controlplane.admin.lists.paging import Pages
from controlplane.admin.live import SHORT_AGE_SECONDS, respond_live
from controlplane.admin.sidebar import QUEUE_PERMISSIONS
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.reasons.pending import explain_hold
from controlplane.models import Job, Pool
from controlplane.queries.pages.queue import (
    MAX_GROUPS,
    PoolQueue,
    PoolQueueEntry,
    list_held_jobs,
    list_held_projects,
    load_queue,
)
from controlplane.queries.pages.versions import HistoryScope
from controlplane.queries.views.pending import load_group_reasons

_SHOWN = 50
_ANCHOR = "page"
_ACTIONS = ("move_to_front", "move_to_end", "change_band", "hold_jobs", "cancel_jobs")


def show_queue(request: HttpRequest, pool_id: int | None = None) -> HttpResponse:
    """Return the queue page of a pool, by default of the first one, which refreshes itself."""
    if not request.user.has_perms(QUEUE_PERMISSIONS):
        raise PermissionDenied
    pools = Pool.objects.order_by("name")
    pool = (pools if pool_id is None else pools.filter(pk=pool_id)).first()
    if pool is None:
        raise Http404("there is no such pool")
    respond = partial(_render, request, pool)
    return respond_live(request, respond, scope=HistoryScope(), max_age=SHORT_AGE_SECONDS)


def _render(request: HttpRequest, pool: Pool) -> HttpResponse:
    now = clock.now()
    queue = load_queue(pool, now=now)
    paginator = Paginator(queue.entries, _SHOWN)
    page = paginator.get_page(request.GET.get(_ANCHOR))
    shown: list[PoolQueueEntry] = list(page)
    reasons = load_group_reasons([entry.group_id for entry in shown], now=now)
    jobs: Any = admin.site._registry[Job]
    allowed = jobs.get_actions(request)
    context = {
        **admin.site.each_context(request),
        "title": f"Queue of pool {pool.name}",
        "subtitle": None,
        "opts": Pool._meta,
        "media": jobs.media,
        "pool": pool,
        "pool_link": page_link("pool", pool.pk, pool.name),
        "notes": _notes(queue),
        "others": [
            (other.name, reverse("admin:controlplane_pool_queue", args=[other.pk]))
            for other in Pool.objects.exclude(pk=pool.pk).order_by("name")[:_SHOWN]
        ],
        "entries": [
            {
                "entry": entry,
                "job": page_link("job", entry.job, f"{entry.name} ({entry.job})"),
                "waiting": count_link(
                    "task",
                    entry.waiting,
                    job__id__exact=entry.job,
                    group__id__exact=entry.group_id,
                    open="pending",
                ),
                "project": page_link("project", entry.project_id, entry.project),
                "share": f"{entry.share:.0%}",
                "moved": "moved" if entry.rank else "",
                "since": instant(entry.since),
                "reason": reasons[entry.group_id][0]["text"] if entry.group_id in reasons else "",
            }
            for entry in shown
        ],
        "pages": Pages(page, _ANCHOR) if page.has_other_pages() else None,
        "actions": [(name, str(allowed[name][2])) for name in _ACTIONS if name in allowed],
        "may_release": "release_jobs" in allowed,
        "jobs_url": reverse("admin:controlplane_job_changelist"),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "held_jobs": [
            {"pk": pk, "job": page_link("job", pk, f"{name} ({pk})"), "hold": _hold_text(hold)}
            for pk, name, hold in list_held_jobs(pool.pk)
        ],
        "held_projects": Table(
            "Held projects, in all pools",
            columns=("project", "hold"),
            rows=[
                (page_link("project", pk, hold.project), _hold_text(replace(hold, project="")))
                for pk, hold in list_held_projects()
            ],
        ),
    }
    return TemplateResponse(request, "controlplane/queue.html", context)


def _hold_text(hold: OpenHold) -> str:
    return str(explain_hold(hold)["text"])


def _notes(queue: PoolQueue) -> list[str]:
    notes = [
        f"Sequencer {queue.sequencer}. The next pass considers the groups in this order, as long as"
        " nothing changes; groups that do not fit are passed, unless the pool is strict."
    ]
    if not queue.is_whole:
        notes.append(f"More than {MAX_GROUPS:,} groups wait; the others are not shown.")
    return notes
