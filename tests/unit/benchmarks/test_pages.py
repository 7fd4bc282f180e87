"""The pages about benchmarks agree with the stored results."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.plans.reviewed import find_review
from benchmarks.plans.summary import ID
from benchmarks.registry import ALL
from benchmarks.report import RESULTS
from docgen import benchmark_pages, query_plans_page
from docgen.generate import FOLDER

STORED = sorted(path for path in RESULTS.glob("*.json") if path.stem != ID)
PAGE = "benchmark-results.md"


def test_results_are_stored_for_known_benchmarks_only() -> None:
    assert len(STORED) > 10
    assert {path.stem for path in STORED} <= set(ALL)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_each_figure_of_a_stored_row_is_on_the_page(path: Path) -> None:
    result = json.loads(path.read_text())
    lines = section_of((FOLDER / PAGE).read_text(), result["id"]).splitlines()
    bounds = {n for n, column in enumerate(result["columns"]) if column.startswith("at most")}
    for row in result["rows"]:
        cells = [cell for n, cell in enumerate(row) if n not in bounds]
        if cells[0] != "at most":
            assert "| " + " | ".join(cells) + " |" in lines
    assert result["machine"]["commit"].removesuffix("-dirty") in "".join(lines)


def test_benchmark_without_a_result_is_not_measured() -> None:
    page = (FOLDER / PAGE).read_text()
    missing = set(ALL) - {path.stem for path in STORED}
    for key in missing:
        assert "Not measured" in section_of(page, key)


def test_page_follows_a_changed_result(tmp_path: Path) -> None:
    folder = copy_results(tmp_path)
    path = folder / "B8.json"
    result = json.loads(path.read_text())
    assert benchmark_pages.write_results(folder) == (FOLDER / PAGE).read_text()
    result["figures"]["ratio"] = 2.5
    path.write_text(json.dumps(result))
    page = benchmark_pages.write_results(folder)
    assert "| rate / rate of HyperQueue | at least 2 | 2.5 | met |" in page


def test_verdict_becomes_not_measured_without_the_result(tmp_path: Path) -> None:
    folder = copy_results(tmp_path)
    (folder / "B8.json").unlink()
    page = benchmark_pages.write_results(folder)
    assert "| rate / rate of HyperQueue | at least 2 | - | not measured |" in page
    assert "Not measured" in section_of(page, "B8")


def test_each_stored_curve_has_a_picture_and_no_other_picture_exists() -> None:
    pictures = benchmark_pages.list_plots()
    assert {FOLDER / name for name in pictures} == {*(FOLDER / "images/benchmarks").iterdir()}
    page = (FOLDER / PAGE).read_text()
    assert [name for name in pictures if f"]({name})" not in page] == []
    assert {"images/benchmarks/B2-jobs.svg", "images/benchmarks/B5-shapes.svg"} <= set(pictures)


def test_picture_is_the_same_each_time_and_follows_the_figures(tmp_path: Path) -> None:
    name = "images/benchmarks/B2-jobs.svg"
    before = benchmark_pages.list_plots()[name]()
    assert benchmark_pages.list_plots()[name]() == before == (FOLDER / name).read_text()
    folder = copy_results(tmp_path)
    path = folder / "B2.json"
    result = json.loads(path.read_text())
    for run in result["figures"]["runs"]["20"]:
        run["finished_seconds"] = 60.0
    path.write_text(json.dumps(result))
    assert benchmark_pages.list_plots(folder)[name]() != before


def section_of(page: str, key: str) -> str:
    return page.partition(f"\n## {key}: ")[2].partition("\n## ")[0]


def copy_results(folder: Path) -> Path:
    return Path(shutil.copytree(RESULTS, folder / "results"))


PLANS_PAGE = "query-plans.md"


def test_page_of_plans_has_the_ten_hottest_statements_and_no_scan_of_a_big_table() -> None:
    figures = json.loads((RESULTS / f"{ID}.json").read_text())["figures"]
    assert figures["tasks"] >= 1_000_000
    hottest = [one for one in figures["statements"] if one["is_hottest"]]
    assert len(hottest) == 10
    assert [one["milliseconds"] for one in hottest] == sorted(
        (one["milliseconds"] for one in hottest), reverse=True
    )
    page = (FOLDER / PLANS_PAGE).read_text()
    for one in hottest:
        assert one["plan"], one["text"]
        assert "\n".join(one["plan"]) in page
        assert "Seq Scan on task " not in "\n".join(one["plan"])
    full = [one for one in figures["findings"] if one["phase"] in ("mixed", "burst")]
    assert [one["part"] for one in full if one["kind"] == "sequential scan"] == []


def test_each_finding_in_a_plan_is_reviewed() -> None:
    figures = json.loads((RESULTS / f"{ID}.json").read_text())["figures"]
    unknown = [
        f"{one['phase']}: {one['kind']}: {one['part']}: {one['text'][:80]}"
        for one in figures["findings"]
        if find_review(one) is None
    ]
    assert unknown == []


def test_scan_of_a_table_that_was_full_is_never_reviewed(tmp_path: Path) -> None:
    folder = copy_results(tmp_path)
    path = folder / f"{ID}.json"
    result = json.loads(path.read_text())
    finding = {
        "phase": "mixed",
        "kind": "sequential scan",
        "part": "controlplane_task: 1,000,000 rows",
        "text": "UPDATE controlplane_task t SET state = ?",
        "calls": 1,
        "share": 1.0,
        "plan_ms": 100.0,
        "plan": [],
    }
    result["figures"]["findings"] = [finding]
    path.write_text(json.dumps(result))
    page = query_plans_page.write(folder)
    assert "1 sequential scan of a table that was big before the load." in page
    assert "**not reviewed**" in page
