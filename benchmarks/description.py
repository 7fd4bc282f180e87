"""Describe a benchmark: claim, workload, peer, method, targets and curves.

The documentation is made from these descriptions and the stored results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import StatisticsError
from typing import Any, TypeVar

Figures = Mapping[str, Any]
"""The figures of a result as JSON has them: keys are texts."""

Read = Callable[[Figures], float]
Points = Sequence[tuple[float, float]]
T = TypeVar("T")


class Skipped(Exception):
    """The caller does not want what a benchmark needs."""


class Verdict(StrEnum):
    """The outcome of a comparison with a target."""

    MET = "met"
    NOT_MET = "not met"
    NOT_MEASURED = "not measured"


class Size(StrEnum):
    """The amount of work: to prove that it works, for half an hour in total, or as published."""

    TINY = "tiny"
    SHORT = "short"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of the caller: runs of which the median counts, and the amount of work."""

    runs: int = 1
    size: Size = Size.SHORT

    def pick(self, *, tiny: T, short: T, full: T) -> T:
        """Return the value for the chosen size."""
        return {Size.TINY: tiny, Size.SHORT: short, Size.FULL: full}[self.size]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for one figure, at least or at most."""

    name: str
    bound: float
    unit: str
    read: Read
    is_least: bool

    @property
    def wanted(self) -> str:
        """The bound in words."""
        word = "at least" if self.is_least else "at most"
        return f"{word} {self.format(self.bound)}"

    def measure(self, figures: Figures) -> float | None:
        """Return the figure; None if the result does not have it."""
        try:
            return self.read(figures)
        except (KeyError, IndexError, StatisticsError):
            return None

    def judge(self, figures: Figures) -> Verdict:
        """Compare the figure of a result with the bound."""
        value = self.measure(figures)
        if value is None:
            return Verdict.NOT_MEASURED
        is_met = value >= self.bound if self.is_least else value <= self.bound
        return Verdict.MET if is_met else Verdict.NOT_MET

    def format(self, value: float) -> str:
        """Return a value with the unit."""
        return f"{format_number(value)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Curve:
    """Figures over a size or a time: one line for each name."""

    name: str
    x: str
    y: str
    read: Callable[[Figures], Mapping[str, Points]]
    is_logarithmic: bool = False

    def lines(self, figures: Figures) -> Mapping[str, Points]:
        """Return the points of each line; none if the result does not have them."""
        try:
            return self.read(figures)
        except (KeyError, IndexError, StatisticsError):
            return {}


@dataclass(frozen=True, slots=True)
class Description:
    """The constant texts of a benchmark, and the limit of its time at the short size."""

    id: str
    title: str
    claim: str
    workload: str
    peer: str
    method: str
    budget_seconds: int
    targets: Sequence[Target] = ()
    curves: Sequence[Curve] = ()


def at_least(bound: float, name: str, read: Read, unit: str = "") -> Target:
    """Return the target of a figure that shall be large."""
    return Target(name, bound, unit, read, is_least=True)


def at_most(bound: float, name: str, read: Read, unit: str = "") -> Target:
    """Return the target of a figure that shall be small."""
    return Target(name, bound, unit, read, is_least=False)


def format_number(value: float) -> str:
    """Return about three digits."""
    digits = next((n for n, least in ((0, 100), (1, 10), (2, 1)) if abs(value) >= least), 3)
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
