"""Usage by month, project, user and job name: figures, ranks, files, and what a caller may read."""

import csv
from collections.abc import Mapping
from datetime import date
from io import StringIO
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.tenancy.accounts import create_default_tenancy
from controlplane.domain.roles import Role
from controlplane.models import Domain, Project, UsageTotal
from controlplane.queries.tenancy import usage
from tests.integration.api.conftest import Answer, Caller, make_caller, make_outsider

pytestmark = pytest.mark.django_db
MAY = date(2031, 5, 1)


@pytest.fixture
def lab() -> Project:
    create_default_tenancy()
    return Project.objects.create(domain=Domain.objects.get(), name="lab")


@pytest.fixture
def other(lab: Project) -> Project:
    return Project.objects.get(name="default")


def total(project: Project, owner: str, job: str, **figures: Any) -> UsageTotal:
    """A total of 10 attempts, all measured unless figures differ."""
    month = figures.pop("month", MAY)
    figures.setdefault("attempts", 10)
    figures.setdefault("cpu_seconds_measured", figures.get("cpu_seconds_requested", 0))
    figures.setdefault(
        "memory_mib_seconds_measured", figures.get("memory_mib_seconds_requested", 0)
    )
    return UsageTotal.objects.create(
        month=month, project=project, owner=owner, job_name=job, **figures
    )


@pytest.fixture
def totals(lab: Project, other: Project) -> None:
    """Wasted: 900 of 1000 CPU seconds by train, 40 of 100 by sweep, 500 of 600 by eval."""
    total(
        lab, "ann", "train", cpu_seconds_requested=1000, cpu_seconds_used=100,
        memory_mib_seconds_requested=5000, memory_mib_seconds_used=4000, memory_peak_mib=64,
        gpu_seconds_requested=20,
    )  # fmt: skip
    total(
        lab, "bob", "sweep", cpu_seconds_requested=100, cpu_seconds_used=60,
        memory_mib_seconds_requested=9000, memory_mib_seconds_used=1000, memory_peak_mib=32,
    )  # fmt: skip
    total(other, "ann", "eval", cpu_seconds_requested=600, cpu_seconds_used=100)
    total(lab, "ann", "train", month=date(2031, 4, 1), cpu_seconds_requested=7, attempts=1)


@pytest.fixture
def reader(totals: None) -> Caller:
    """An operator."""
    return make_caller("root", Role.OPERATOR)


def listed(answer: Answer) -> list[Mapping[str, Any]]:
    assert answer.status == 200, answer.content
    found: list[Mapping[str, Any]] = answer.json["results"]
    return found


def keys(answer: Answer, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in listed(answer)]


def test_figures_of_a_month_are_added_up_by_project_the_largest_waste_first(
    reader: Caller,
) -> None:
    first, second = listed(reader.get("/usage?month=2031-05"))
    assert first == {
        "month": None,
        "project": "default/lab",
        "user": None,
        "job": None,
        "attempts": 20,
        "unmeasured_attempts": 0,
        "requested_cpu_seconds": 1100,
        "used_cpu_seconds": 160,
        "wasted_cpu_seconds": 940,
        "requested_memory_mib_seconds": 14_000,
        "used_memory_mib_seconds": 5000,
        "wasted_memory_mib_seconds": 9000,
        "memory_peak_mib": 64,
        "requested_gpu_seconds": 20,
    }
    assert (second["project"], second["wasted_cpu_seconds"]) == ("default/default", 500)


@pytest.mark.parametrize(
    ("query", "names", "expected"),
    [
        ("by=user", ("user", "wasted_cpu_seconds"), [("ann", 1400), ("bob", 40)]),
        ("by=job", ("job",), [("train",), ("eval",), ("sweep",)]),
        ("by=job&rank=memory", ("job",), [("sweep",), ("train",), ("eval",)]),
        ("by=job&rank=gpu", ("job",), [("train",), ("eval",), ("sweep",)]),
        (
            "by=project,user",
            ("project", "user"),
            [("default/lab", "ann"), ("default/default", "ann"), ("default/lab", "bob")],
        ),
        ("by=job&project=lab", ("job",), [("train",), ("sweep",)]),
        ("by=job&user=ann", ("job",), [("train",), ("eval",)]),
        ("by=job&job=tra", ("job",), [("train",)]),
        ("by=job&job=rain", ("job",), []),
        ("by=job&job=%25", ("job",), []),
    ],
)
def test_totals_are_grouped_filtered_and_ranked(
    reader: Caller, query: str, names: tuple[str, ...], expected: list[tuple[Any, ...]]
) -> None:
    assert keys(reader.get(f"/usage?month=2031-05&{query}"), *names) == expected


def test_months_are_added_up_between_the_first_and_the_last(reader: Caller) -> None:
    by_month = keys(reader.get("/usage?from=2031-04&to=2031-05&by=month"), "month", "attempts")
    assert by_month == [("2031-05", 30), ("2031-04", 1)]
    assert keys(reader.get("/usage?from=2031-04&to=2031-04"), "attempts") == [(1,)]
    assert listed(reader.get("/usage?from=2031-06&to=2031-07")) == []


def test_without_a_month_the_present_one_is_listed(reader: Caller, lab: Project) -> None:
    total(lab, "ann", "now", month=clock.now().date().replace(day=1))
    assert keys(reader.get("/usage?by=job"), "job") == [("now",)]


def test_unmeasured_attempts_are_no_waste(reader: Caller, lab: Project) -> None:
    """900 of the 1,000 requested seconds are those of attempts without a measurement."""
    total(
        lab, "ann", "blind", month=date(2031, 6, 1), unmeasured_attempts=9,
        cpu_seconds_requested=1000, cpu_seconds_measured=100, cpu_seconds_used=80,
    )  # fmt: skip
    [row] = listed(reader.get("/usage?month=2031-06"))
    assert (row["requested_cpu_seconds"], row["wasted_cpu_seconds"]) == (1000, 20)
    assert row["unmeasured_attempts"] == 9


def test_remaining_job_names_have_a_name_that_no_job_has(reader: Caller, lab: Project) -> None:
    total(lab, "ann", "", month=date(2031, 6, 1))
    assert keys(reader.get("/usage?month=2031-06&by=job"), "job") == [("(other jobs)",)]


def test_pages_contain_each_row_once(reader: Caller) -> None:
    found, address = [], "/usage?month=2031-05&by=job&limit=1"
    while address:
        answer = reader.get(address)
        found += keys(answer, "job")
        address = answer.json["next"]
    assert found == [("train",), ("eval",), ("sweep",)]


def test_members_see_their_projects_only(totals: None, lab: Project) -> None:
    viewer, outsider = make_caller("vic", project="lab"), make_outsider("out")
    assert keys(viewer.get("/usage?month=2031-05"), "project") == [("default/lab",)]
    assert keys(viewer.get("/usage?month=2031-05&by=user"), "user", "attempts") == [
        ("ann", 10),
        ("bob", 10),
    ]
    assert viewer.get("/usage?project=default").status == 404
    assert viewer.get("/usage.csv?project=default").status == 404
    assert b"eval" not in viewer.get("/usage.csv?month=2031-05&by=job").content
    assert listed(outsider.get("/usage?month=2031-05")) == []
    assert len(outsider.get("/usage.csv?month=2031-05").content.splitlines()) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("month=2031-13", "month"),
        ("month=2031", "month"),
        ("month=0000-01", "month"),
        ("month=%D9%A2031-05", "month"),
        ("month=2031-05&from=2031-04", "month"),
        ("from=may", "from"),
        ("to=2031-05-04", "to"),
        ("by=cell", "by"),
        ("by=,", "by"),
        ("rank=disk", "rank"),
        ("year=2031", "year"),
    ],
)
def test_bad_parameter_is_refused_with_its_name(reader: Caller, query: str, field: str) -> None:
    for path in ("/usage", "/usage.csv"):
        answer = reader.get(f"{path}?{query}")
        assert (answer.status, list(answer.faults)) == (400, [field])


def read_csv(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200
    return list(csv.DictReader(StringIO(answer.content.decode())))


def test_file_has_the_keys_and_the_figures_in_the_same_order(reader: Caller) -> None:
    answer = reader.get("/usage.csv?month=2031-05&by=project,job")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    disposition = answer.headers["Content-Disposition"]
    assert disposition == 'attachment; filename="usage-2031-05.csv"'
    found = read_csv(answer)
    assert [(row["project"], row["job"]) for row in found] == [
        ("default/lab", "train"),
        ("default/default", "eval"),
        ("default/lab", "sweep"),
    ]
    assert (found[0]["wasted_cpu_seconds"], found[0]["attempts"]) == ("900.0", "10")
    assert "user" not in found[0]
    named = reader.get("/usage.csv?from=2031-04&to=2031-05").headers["Content-Disposition"]
    assert named == 'attachment; filename="usage-2031-04-to-2031-05.csv"'


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_name_that_is_a_formula_is_a_text_in_the_file(
    reader: Caller, lab: Project, name: str
) -> None:
    """Names of users may begin so; a negative figure stays a number."""
    total(
        lab, name, "x", month=date(2031, 6, 1), cpu_seconds_requested=1, cpu_seconds_used=3
    )  # fmt: skip
    [row] = read_csv(reader.get("/usage.csv?month=2031-06&by=user"))
    assert (row["user"], row["wasted_cpu_seconds"]) == (f"'{name}", "-2.0")


def test_file_has_the_most_wasteful_rows_if_there_are_more(
    reader: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_CSV_ROWS", 2)
    found = read_csv(reader.get("/usage.csv?month=2031-05&by=job"))
    assert [row["job"] for row in found] == ["train", "eval"]
