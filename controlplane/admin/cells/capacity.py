"""Charts of the resources of a cell: used, reserved and free over an hour or a day."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from controlplane.admin.badges import bare_amount
from controlplane.admin.lists.paging import Chip
from controlplane.admin.sections.charts import Charts, Line, line_chart
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import COLOURS
from controlplane.queries.cells.samples import CellFigures, load_cell_samples

SPAN = "span"
"""The query parameter that selects the time."""

ANCHOR = "capacity"
SPANS = MappingProxyType(
    {
        "hour": ("last hour", timedelta(minutes=1), 60),
        "day": ("last day", timedelta(minutes=15), 96),
    }
)
"""Times by name: a text, and the length and number of points."""

_TITLES = {"cpu_millis": "CPU cores", "memory_mib": "Memory", "gpu": "GPUs"}
_LINES: tuple[Line[CellFigures], ...] = (
    Line("used", "#0969da", lambda figures: figures.used),
    Line("reserved", "#9a6700", lambda figures: figures.reserved),
    Line("free", COLOURS[TaskState.SUCCEEDED], lambda figures: figures.free),
)


def capacity_charts(cell_id: int, span: str | None, *, now: datetime) -> Charts:
    """Return a chart for each resource that the cell had during the time."""
    chosen = span if span is not None and span in SPANS else "hour"
    _, each, count = SPANS[chosen]
    samples = load_cell_samples(cell_id, until=now, each=each, count=count)
    return Charts(
        "Capacity over time",
        anchor=ANCHOR,
        charts=[
            line_chart(_TITLES[name], name, _LINES, points, _summarize(name, points))
            for name, points in samples.items()
            if any(point.capacity or point.used for point in points)
        ],
        chips=[
            Chip(text, f"?{SPAN}={name}#{ANCHOR}", name == chosen)
            for name, (text, *_) in SPANS.items()
        ],
        empty="no samples: they are taken each minute while the cell is not lost",
    )


def _summarize(name: str, points: Sequence[Any]) -> str:
    """Return the newest figures in words."""
    known = [point for point in points if point.capacity is not None]
    last = known[-1]
    most = max(point.used for point in known)

    def shown(amount: float) -> str:
        return bare_amount(name, round(amount))

    return (
        f"{shown(last.used)} used, {shown(last.reserved)} reserved, {shown(last.free)} free;"
        f" at most {shown(most)} used"
    )
