"""Generate deploy/grafana/cellrun.json: a dashboard of the metrics for Grafana 11 and newer."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType

from grafana_foundation_sdk.builders.common import StackingConfig
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)

from controlplane.domain.metrics import METRICS

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_POOLS = 'pool=~"$pool"'

_RESOURCES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "cpu_millis": ("Cores", "short", " / 1000"),
        "memory_mib": ("Memory", "bytes", " * 1048576"),
        "gpu": ("GPUs", "short", ""),
    }
)
"""By resource: its title, its unit, and how its amount becomes that."""


_RED = "red"
_GREEN = "green"

Query = tuple[str, str]
"""An expression, and the name of its lines."""


def write() -> str:
    """Return the dashboard as JSON."""
    dashboard = (
        Dashboard("Cellrun")
        .uid("cellrun")
        .tags(["cellrun"])
        .refresh("30s")
        .time("now-6h", "now")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            QueryVariable("pool")
            .label("Pool")
            .datasource(_SOURCE)
            .query("label_values(cellrun_jobs_open, pool)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(VariableOption(selected=True, text="All", value="$__all"))
        )
    )
    numbers = count(1)
    for stat in _stats():
        dashboard = dashboard.with_panel(stat.id(next(numbers)))
    for title, panels in (
        ("Work", _work()),
        ("Capacity", _capacity()),
        ("Control plane", _control_plane()),
    ):
        dashboard = dashboard.with_row(Row(title).id(next(numbers)))
        for panel in panels:
            dashboard = dashboard.with_panel(panel.id(next(numbers)))
    return JSONEncoder(sort_keys=True, indent=2).encode(dashboard.build()) + "\n"


def _stats() -> list[Stat]:
    return [
        _stat("Open alerts", "max(cellrun_alerts_open)", red_from=1),
        _stat("READY cells", 'max(cellrun_cells{state="READY"})'),
        _stat("Waiting tasks", f"sum({_over_pools('waiting_tasks', 'band')})"),
        _stat("Stuck tasks", f"sum({_over_pools('stuck_tasks', 'band')})", red_from=1),
        _stat(
            "Last convergence",
            'max(cellrun_tick_age_seconds{tick="convergence"})',
            red_from=60,
            unit="s",
        ),
        _stat(
            "Most overdue callback",
            "max(cellrun_callback_overdue_seconds)",
            red_from=900,
            unit="s",
        ),
    ]


def _work() -> list[TimeSeries]:
    tasks = f"sum by (state) (max by (pool, state) (cellrun_tasks_open{{{_POOLS}}}))"
    waiting = f"sum by (band) ({_over_pools('waiting_tasks', 'band')})"
    ends = f"sum by (outcome) ({_over_pools('recent_ends', 'outcome')})"
    starts = f"sum({_over_pools('recent_starts')})"
    latency = _over_pools("recent_latency_seconds", "percentile")
    return [
        _lines("Open tasks by state", [(tasks, "{{state}}")], is_stacked=True),
        _lines("Waiting tasks by band", [(waiting, "{{band}}")], is_stacked=True),
        _lines("Starts and ends in five minutes", [(ends, "{{outcome}}"), (starts, "started")]),
        _lines("Time to the first start", [(latency, "{{pool}} {{percentile}} %")], unit="s"),
    ]


def _capacity() -> list[TimeSeries]:
    panels = []
    for resource, (title, unit, scale) in _RESOURCES.items():
        selected = f'{_POOLS},resource="{resource}"'
        queries = [
            (f"max by (pool) (cellrun_pool_{what}{{{selected}}}){scale}", f"{{{{pool}}}} {what}")
            for what in ("used", "wanted", "capacity")
        ]
        panels.append(_lines(title, queries, unit=unit))
    cells = "max by (state) (cellrun_cells)"
    return [*panels, _lines("Cells by state", [(cells, "{{state}}")], is_stacked=True)]


def _control_plane() -> list[TimeSeries]:
    return [
        _lines("Alerts by kind", [("max by (kind) (cellrun_alerts) > 0", "{{kind}}")]),
        _lines(
            "Age of ticks", [("max by (tick) (cellrun_tick_age_seconds)", "{{tick}}")], unit="s"
        ),
        _lines(
            "Duration of ticks",
            [("max by (tick) (cellrun_tick_duration_seconds)", "{{tick}}")],
            unit="s",
        ),
        _lines("Callbacks", [("max by (state) (cellrun_callbacks)", "{{state}}")]),
        _lines(
            "Jobs to delete",
            [("max(cellrun_jobs_expired)", "expired"), ("max(cellrun_jobs_deleted)", "deleted")],
        ),
        _lines("Refused requests", [("max by (what) (cellrun_refusals_audited)", "{{what}}")]),
    ]


def _over_pools(name: str, *labels: str) -> str:
    """Return the values of a metric of the chosen pools, once for all web processes."""
    kept = ", ".join(("pool", *labels))
    return f"max by ({kept}) (cellrun_pool_{name}{{{_POOLS}}})"


def _stat(title: str, expr: str, *, red_from: float | None = None, unit: str = "short") -> Stat:
    steps = [Threshold(value=None, color=_GREEN)]
    if red_from is not None:
        steps.append(Threshold(value=red_from, color=_RED))
    return (
        Stat()
        .title(title)
        .description(_describe(expr))
        .datasource(_SOURCE)
        .unit(unit)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .span(4)
        .height(4)
        .with_target(Dataquery().ref_id("A").expr(expr).instant())
    )


def _lines(
    title: str, queries: Sequence[Query], *, unit: str = "short", is_stacked: bool = False
) -> TimeSeries:
    panel = (
        TimeSeries()
        .title(title)
        .description(_describe(*(expr for expr, _ in queries)))
        .datasource(_SOURCE)
        .unit(unit)
        .min(0)
        .fill_opacity(20 if is_stacked else 0)
        .span(12)
        .height(8)
    )
    if is_stacked:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL))
    for letter, (expr, legend) in zip("ABC", queries, strict=False):
        panel = panel.with_target(Dataquery().ref_id(letter).expr(expr).legend_format(legend))
    return panel


def _describe(*exprs: str) -> str:
    """Return the meanings of the metrics that expressions name."""
    names = dict.fromkeys(name for expr in exprs for name in re.findall(r"\bcellrun_\w+", expr))
    return " ".join(METRICS[name].meaning for name in names)
