"""Admin pages of ticks: last run, duration of the phases, results, recorded runs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.admin.badges import duration, figures, instant, length, list_link, page_link
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column
from controlplane.models import TickRun, TickState

_SHOWN_RUNS = 25


def longest_phases(phases: Mapping[str, int], shown: int = 3) -> str:
    """The phases that took longest: `deletion 40 ms, endings 12 ms`."""
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    listed = [f"{name}\N{NO-BREAK SPACE}{took}\N{NO-BREAK SPACE}ms" for name, took in ordered]
    return ", ".join(listed[:shown])


class RunColumns(ReadOnlyAdmin):
    """The columns of a run, and of the last run of a tick."""

    took = column(lambda run: duration(run.started_at, run.finished_at), "took")
    lag = column(lambda run: length(run.lag_seconds), "late by")
    did = column(lambda run: figures(run.counts), "did")
    took_most = column(lambda run: longest_phases(run.phases), "phases")


@admin.register(TickState)
class TickAdmin(RunColumns):
    """The ticks and when they last ran."""

    ordering: ClassVar = ("name",)
    list_display = ("name", "finished", "took", "lag", "did", "took_most", "mark")

    finished = column(lambda tick: instant(tick.finished_at), "last end")

    def facts(self, obj: TickState) -> list[tuple[str, Any]]:
        """The last run."""
        return [
            ("last start", instant(obj.started_at)),
            ("last end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("late by", length(obj.lag_seconds)),
            ("considered pending tasks", instant(obj.covered_at)),
            ("only listens until", instant(obj.hold_until)),
            ("wakes that found it busy", obj.mark),
        ]

    def sections(self, obj: TickState) -> list[Section]:
        """What its last run did, and the newest that did something."""
        runs = list(TickRun.objects.filter(name=obj.name).order_by("-id")[: _SHOWN_RUNS + 1])
        more = list_link("tickrun", "All of them", tick=obj.name)
        return [
            *run_sections(obj),
            Table(
                "Runs that did something, or were late, in the last day",
                columns=("run", "start", "took", "late by", "did", "phases"),
                rows=[
                    (
                        page_link("tickrun", run.pk, run.pk),
                        instant(run.started_at),
                        duration(run.started_at, run.finished_at),
                        length(run.lag_seconds),
                        figures(run.counts),
                        longest_phases(run.phases),
                    )
                    for run in runs[:_SHOWN_RUNS]
                ],
                more=more if len(runs) > _SHOWN_RUNS else None,
            ),
        ]


class TickFilter(admin.SimpleListFilter):
    """One tick's runs; the ticks are known without looking through a day's runs."""

    title = "tick"
    parameter_name = "tick"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """The ticks that ever ran."""
        names = TickState.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The runs chosen."""
        return queryset.filter(name=self.value()) if self.value() else queryset


@admin.register(TickRun)
class TickRunAdmin(RunColumns):
    """Runs of ticks that did something, or were late, newest first."""

    list_display = ("number", "name", "start", "took", "lag", "did", "took_most")
    list_display_links = ("number", "name")
    list_filter = (TickFilter,)

    number = column(lambda run: run.pk, "run", ordering="pk")
    start = column(lambda run: instant(run.started_at), "start", ordering="pk")

    def facts(self, obj: TickRun) -> list[tuple[str, Any]]:
        """When, and how long."""
        return [
            ("tick", page_link("tickstate", obj.name, obj.name)),
            ("start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("late by", length(obj.lag_seconds)),
        ]

    def sections(self, obj: TickRun) -> list[Section]:
        """What it did, and the time of each phase."""
        return list(run_sections(obj))


def run_sections(run: TickState | TickRun) -> list[Table]:
    """What a run did, and how long each of its phases took."""
    phases = sorted(run.phases.items(), key=lambda item: -item[1])
    return [
        Table(
            "What it did",
            columns=("what", "how many"),
            rows=[(name, number) for name, number in run.counts.items() if number],
            empty="nothing",
        ),
        Table(
            "Phases",
            columns=("phase", "milliseconds"),
            rows=phases,
            empty="none had work",
        ),
    ]
