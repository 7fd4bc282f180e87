"""Line charts, each with its figures as a table; lines.js draws them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from controlplane.admin.badges import bare_amount, instant, length
from controlplane.admin.base import Section
from controlplane.admin.lists.paging import Chip


class Point(Protocol):
    """The values of all lines at an instant, or over the time from it."""

    @property
    def at(self) -> datetime:
        """Return the instant."""
        ...

    @property
    def is_sampled(self) -> bool:
        """Return whether there are samples of it."""
        ...


P = TypeVar("P", bound=Point)
_WHOLE = 0.9
"""The share of sampled points from which a chart does not report how many there are."""


@dataclass(frozen=True, slots=True)
class Line(Generic[P]):
    """A line of a chart: its value at each point, None where there is none."""

    name: str
    colour: str
    value: Callable[[P], float | None]


@dataclass(frozen=True, slots=True)
class Charts(Section):
    """Charts side by side. `chips`: links to the same charts over another time."""

    template: ClassVar[str] = "controlplane/section_charts.html"
    charts: Sequence[dict[str, Any]] = ()
    chips: Sequence[Chip] = ()
    empty: str = ""


def line_chart(
    title: str, unit: str, lines: Sequence[Line[P]], points: Sequence[P], summary: str
) -> dict[str, Any]:
    """Return a chart for chart.html. `unit`: seconds, tasks, or the name of a resource."""
    values = [[line.value(point) for point in points] for line in lines]
    figures = [
        (instant(point.at), *(_figure(each[place], unit) for each in values))
        for place, point in enumerate(points)
        if any(each[place] for each in values)
    ]
    return {
        "title": title,
        "unit": unit,
        "summary": summary,
        "coverage": _coverage(points),
        "lines": [{"name": line.name, "colour": line.colour} for line in lines],
        "times": json.dumps([int(point.at.timestamp() * 1000) for point in points]),
        "values": json.dumps([[_rounded(value) for value in each] for each in values]),
        "figures": figures[::-1],
    }


def _coverage(points: Sequence[Point]) -> str:
    """Return how many points have samples, if so few that the lines are not those of the time."""
    sampled = sum(point.is_sampled for point in points)
    if sampled >= _WHOLE * len(points):
        return ""
    minutes = round((points[1].at - points[0].at).total_seconds() / 60)
    periods = "minutes" if minutes == 1 else f"periods of {minutes} minutes"
    return f"There are samples for only {sampled} of {len(points)} {periods}."


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    match unit:
        case "seconds":
            return length(value)
        case "tasks":
            return f"{value:.0f}"
        case _:
            return bare_amount(unit, round(value))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
