"""Admin pages of ticks: last run, duration of the phases, results, recorded runs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.admin.badges import duration, figures, instant, length, list_link, page_link
from controlplane.admin.base import ReadOnlyAdmin, Section, Table, column
from controlplane.admin.live import SHORT_AGE_SECONDS
from controlplane.models import TickRun, TickState

_SHOWN_RUNS = 25


def longest_phases(phases: Mapping[str, int], shown: int = 3) -> str:
    """Return the phases that took longest: `deletion 40 ms, endings 12 ms`."""
    ordered = sorted(phases.items(), key=lambda item: -item[1])
    listed = [f"{name}\N{NO-BREAK SPACE}{took}\N{NO-BREAK SPACE}ms" for name, took in ordered]
    return ", ".join(listed[:shown])


class RunColumns(ReadOnlyAdmin):
    """The columns of a run, and of the last run of a tick."""

    max_age: ClassVar = SHORT_AGE_SECONDS

    took = column(lambda run: duration(run.started_at, run.finished_at), "took")
    lag = column(lambda run: length(run.lag_seconds), "late by")
    did = column(lambda run: figures(run.counts), "results")
    took_most = column(lambda run: longest_phases(run.phases), "phases")


@admin.register(TickState)
class TickAdmin(RunColumns):
    """The ticks with their last runs."""

    ordering: ClassVar = ("name",)
    list_display = ("name", "finished", "took", "lag", "did", "took_most", "mark")

    finished = column(lambda tick: instant(tick.finished_at), "last end")

    def facts(self, obj: TickState) -> list[tuple[str, Any]]:
        """Return the facts of the last run."""
        return [
            ("last start", instant(obj.started_at)),
            ("last end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("late by", length(obj.lag_seconds)),
            ("all pending tasks considered", instant(obj.covered_at)),
            ("declares nothing lost until", instant(obj.hold_until)),
            ("wakes during a run", obj.mark),
        ]

    def sections(self, obj: TickState) -> list[Section]:
        """Return the results of the last run, and the newest recorded runs."""
        runs = list(TickRun.objects.filter(name=obj.name).order_by("-id")[: _SHOWN_RUNS + 1])
        more = list_link("tickrun", "All recorded runs", tick=obj.name)
        return [
            *run_sections(obj),
            Table(
                "Runs of the last day that changed something or were late",
                columns=("run", "start", "took", "late by", "results", "phases"),
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
    """A filter by tick; its choices come from TickState, which has one row per tick."""

    title = "tick"
    parameter_name = "tick"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return the ticks that have run."""
        names = TickState.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the runs of the selected tick."""
        return queryset.filter(name=self.value()) if self.value() else queryset


@admin.register(TickRun)
class TickRunAdmin(RunColumns):
    """Runs of ticks that changed something or were late, newest first."""

    list_display = ("number", "name", "start", "took", "lag", "did", "took_most")
    list_display_links = ("number", "name")
    list_filter = (TickFilter,)

    number = column(lambda run: run.pk, "run", ordering="pk")
    start = column(lambda run: instant(run.started_at), "start", ordering="pk")

    def facts(self, obj: TickRun) -> list[tuple[str, Any]]:
        """Return the times of the run."""
        return [
            ("tick", page_link("tickstate", obj.name, obj.name)),
            ("start", instant(obj.started_at)),
            ("end", instant(obj.finished_at)),
            ("took", duration(obj.started_at, obj.finished_at)),
            ("late by", length(obj.lag_seconds)),
        ]

    def sections(self, obj: TickRun) -> list[Section]:
        """Return the results, and the time of each phase."""
        return list(run_sections(obj))


def run_sections(run: TickState | TickRun) -> list[Table]:
    """Return the results of a run, and the time of each of its phases."""
    phases = sorted(run.phases.items(), key=lambda item: -item[1])
    return [
        Table(
            "Results",
            columns=("result", "count"),
            rows=[(name, number) for name, number in run.counts.items() if number],
            empty="no changes",
        ),
        Table(
            "Phases",
            columns=("phase", "milliseconds"),
            rows=phases,
            empty="no phase had work",
        ),
    ]
