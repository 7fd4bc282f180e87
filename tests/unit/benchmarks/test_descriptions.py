"""Each benchmark is one described module, has its targets, and fits into half an hour."""

import importlib

import pytest

from benchmarks.description import Description, Verdict, at_least, at_most, format_number
from benchmarks.registry import ALL, MODULES
from tests.architecture.source import ROOT

HALF_AN_HOUR = 1_800

BOUNDS = {
    "B1": {">= 5", "<= 0.10 ms", "<= 0.06 ms", ">= 6", ">= 4.5"},
    "B2": {"<= 5 s", "<= 2"},
    "B3": {"<= 1.15", "<= 20 s"},
    "B4": {"<= 0.5 s", "<= 60 ms"},
    "B6": {"<= 12 ms", "<= 32 ms"},
    "B8": {">= 2", ">= 1500 tasks/s"},
    "B9": {"<= 50 ms", "<= 1.1"},
    "B10": {"<= 200", "<= 2 % of a core"},
    "B11": {"<= 1.1"},
    "B13": {"<= 12 ms", "<= 32 ms", "<= 1 % of the load"},
    "B14": {">= 95 % of clean", ">= 98 % of clean"},
    "B16": {"<= 10 s", "<= 0"},
    "B17": {"<= 1.15"},
}
"""The targets of the project."""


def bounds_of(about: Description) -> set[tuple[bool, float, str]]:
    return {(target.is_least, target.bound, target.unit) for target in about.targets}


def parse(text: str) -> tuple[bool, float, str]:
    sign, number, *unit = text.split(" ", 2)
    return sign == ">=", float(number), "".join(unit)


@pytest.mark.parametrize("key", BOUNDS)
def test_benchmark_has_its_targets(key: str) -> None:
    assert bounds_of(ALL[key].about) == {parse(text) for text in BOUNDS[key]}


def test_each_module_with_a_description_is_registered_once() -> None:
    described = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if path.stem not in ("__init__", "__main__")
        and hasattr(importlib.import_module(f"benchmarks.{path.stem}"), "ABOUT")
    }
    assert {module.__name__ for module in MODULES} == {f"benchmarks.{name}" for name in described}
    assert len(ALL) == len(MODULES)


@pytest.mark.parametrize("key", ALL)
def test_description_is_complete(key: str) -> None:
    about = ALL[key].about
    texts = (about.claim, about.workload, about.peer, about.method)
    assert [text for text in texts if not text.endswith(".")] == []
    names = [target.name for target in about.targets]
    assert len(names) == len(set(names))


def test_budgets_of_all_are_half_an_hour_at_most() -> None:
    assert all(benchmark.about.budget_seconds > 0 for benchmark in ALL.values())
    assert sum(benchmark.about.budget_seconds for benchmark in ALL.values()) <= HALF_AN_HOUR


def test_target_is_met_at_its_bound_and_not_beyond() -> None:
    least = at_least(5, "rate", lambda it: it["rate"])
    most = at_most(5, "time", lambda it: it["rate"])
    assert [least.judge({"rate": value}) for value in (4.99, 5, 5.01)] == [
        Verdict.NOT_MET,
        Verdict.MET,
        Verdict.MET,
    ]
    assert [most.judge({"rate": value}) for value in (4.99, 5, 5.01)] == [
        Verdict.MET,
        Verdict.MET,
        Verdict.NOT_MET,
    ]
    assert least.judge({}) is Verdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("value", "text"),
    [(1838.2, "1,838"), (12.34, "12.3"), (5, "5"), (4.67, "4.67"), (0.06, "0.06"), (-3, "-3")],
)
def test_number_has_about_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text
