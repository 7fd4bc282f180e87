"""Admin pages of schedules: the next instant, what became of the last ones, and actions."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import flag_badge, instant, page_link
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column, confirmed_action
from controlplane.admin.fields import read_reason
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.commands.schedules.configure import (
    delete_schedule,
    pause_schedule,
    resume_schedule,
)
from controlplane.commands.schedules.fire import run_schedule
from controlplane.domain.schedules.firing import Outcome
from controlplane.models import Schedule
from controlplane.queries.schedules import list_firings

_SHOWN = 50


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    """Schedules of all projects. Users who may change jobs pause, run and delete them."""

    list_display = ("name", "place", "cron", "time_zone", "overlap", "catch_up", "owner", "due")
    list_filter = ("is_paused", "overlap")
    list_select_related = ("owner", "project__domain")
    search_fields = ("name",)
    ordering = ("next_at", "pk")
    max_age = SHORT_AGE_SECONDS
    actions = ("pause", "resume", "run_now", "delete_schedules")

    place = column(lambda it: page_link("project", it.project_id, it.project), "project")
    due = column(lambda it: _due(it), "next instant", ordering="next_at")

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may change jobs."""
        return bool(request.user.has_perm("controlplane.change_job"))

    @confirmed_action(
        "Pause",
        title="Pause these schedules?",
        text="No instant is fired until they are resumed. Jobs that run are not affected.",
        button="Pause",
        done="Schedules paused",
        fields=("reason",),
    )
    def pause(self, request: HttpRequest, schedule: Schedule) -> None:
        """Fire no further instant."""
        pause_schedule(schedule_id=schedule.pk, **_order(request))

    @confirmed_action(
        "Resume",
        title="Resume these schedules?",
        text="They begin with their next instant. Instants of the pause are not fired.",
        button="Resume",
        done="Schedules resumed",
        fields=("reason",),
    )
    def resume(self, request: HttpRequest, schedule: Schedule) -> None:
        """Fire again from the next instant on."""
        resume_schedule(schedule_id=schedule.pk, **_order(request))

    @confirmed_action(
        "Run now",
        title="Run these schedules now?",
        text="Each submits its job now, whatever its calendar and its overlap rule.",
        button="Run now",
        done="Jobs submitted",
    )
    def run_now(self, request: HttpRequest, schedule: Schedule) -> None:
        """Submit the job."""
        run_schedule(schedule, actor=str(request.user), now=clock.now())

    @confirmed_action(
        "Delete",
        title="Delete these schedules?",
        text="They are deleted with their history. Their jobs stay.",
        button="Delete",
        done="Schedules deleted",
    )
    def delete_schedules(self, request: HttpRequest, schedule: Schedule) -> None:
        """Delete a schedule."""
        delete_schedule(schedule_id=schedule.pk, actor=str(request.user), now=clock.now())

    def page_actions(self, obj: Schedule) -> list[str]:
        """Return the actions that its state permits."""
        return ["resume" if obj.is_paused else "pause", "run_now", "delete_schedules"]

    def heading(self, obj: Schedule) -> Mapping[str, Any]:
        """Return its name, and why it is paused."""
        badge = flag_badge("paused", good=False) if obj.is_paused else ""
        return {"title": f"Schedule {obj.name}", "badge": badge, "notes": [obj.paused_because]}

    def facts(self, obj: Schedule) -> list[tuple[str, Any]]:
        """Return the calendar and the rules."""
        return [
            ("project", self.place(obj)),
            ("owner", obj.owner),
            ("cron", obj.cron),
            ("time zone", obj.time_zone),
            ("next instant", _due(obj)),
            ("overlap", obj.overlap),
            ("missed instants", obj.catch_up),
            ("job", str(obj.job.get("name", ""))),
            ("created", instant(obj.created_at)),
            ("changed", instant(obj.updated_at)),
        ]

    def sections(self, obj: Schedule) -> list[Section]:
        """Return what became of the last instants."""
        rows = [
            (
                instant(firing["at"]),
                flag_badge(firing["outcome"], good=firing["outcome"] in _GOOD),
                "" if firing["job"] is None else page_link("job", firing["job"], firing["job"]),
                firing["text"],
            )
            for firing in list_firings(obj.pk, limit=_SHOWN)
        ]
        columns = ("instant", "outcome", "job", "why")
        return [Table("Instants", columns=columns, rows=rows, empty="none yet")]


_GOOD = (Outcome.STARTED, Outcome.WAITING)


def _order(request: HttpRequest) -> dict[str, Any]:
    return {"reason": read_reason(request), "actor": str(request.user), "now": clock.now()}


def _due(schedule: Schedule) -> SafeString | str:
    return "paused" if schedule.is_paused else instant(schedule.next_at)
