"""Drawings: the seed's names and colours, counts, reasons, lengths of time."""

import io

import pytest
from rich.console import Console, RenderableType

from cellrun.display.cells import cell_table
from cellrun.display.render import (
    COLOURS,
    counts_text,
    duration_text,
    explanation,
    finished_count,
    job_page,
    job_table,
    note,
    state_text,
    task_table,
)
from cellrun.states import TERMINAL_STATES
from controlplane.domain.state import states
from tests.unit.client.documents import a_cell, a_job, a_task


def drawn(thing: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_state_names_and_colours_match_the_domain() -> None:
    assert {state.name: colour for state, colour in states.COLOURS.items()} == COLOURS
    assert {state.name for state in states.TERMINAL} == TERMINAL_STATES
    assert state_text("WORKER_FAILED").plain == "worker_failed"
    assert str(state_text("RUNNING").style) == "#0969da"


def test_counts_are_in_lifecycle_order_and_keep_unknown_states() -> None:
    text = counts_text({"SUCCEEDED": 3, "PENDING": 1, "FAILED": 0, "NEWER": 2})
    assert text.plain == "1 pending, 3 succeeded, 2 newer"


def test_job_page_shows_groups_tasks_and_pending_reasons() -> None:
    reason = {"code": "insufficient_resources", "text": "lacks 998 of 1000 cores"}
    waits = a_task(pending_reason=reason)
    failed = a_task(
        index=1,
        state="FAILED",
        cell_id="cell-2",
        exit_code=137,
        attempt_number=2,
        failure_reason="out of memory",
    )
    page = drawn(job_page(a_job(failure_reason="too many failed"), [waits, failed], total=9))
    for words in (
        "sweep job 7  running",
        "too many failed",
        "1 pending, 1 running",
        "main.0",
        "lacks 998 of 1000 cores",
        "cell-2",
        "137",
        "out of memory",
        "and 7 more",
    ):
        assert words in page


def test_ending_job_shows_its_final_state() -> None:
    assert "running, ending as killed" in drawn(job_table([a_job(ending_as="KILLED")]))
    ended = a_job(ending_as="KILLED", state="KILLED")
    assert "ending as" not in drawn(job_table([ended]))


def test_jobs_of_several_projects_are_listed_with_their_projects() -> None:
    one, other = a_job(), a_job(domain="research", project="vision")
    assert "PROJECT" not in drawn(job_table([one, one]))
    text = drawn(job_table([one, other]))
    assert "PROJECT" in text
    assert "research/vision" in text


def test_a_long_result_is_cut() -> None:
    assert note(a_task(state="SUCCEEDED", result="a\nb " + "x" * 100)).endswith("…")
    assert note(a_task(state="SUCCEEDED", result=" 42\n")) == "42"
    assert "42" in drawn(task_table([a_task(state="SUCCEEDED", result="42")]))


def test_square_brackets_are_not_markup() -> None:
    assert "[bold]" in drawn(task_table([a_task(state="SUCCEEDED", result="[bold]x")]))
    assert "[/x]" in drawn(job_page(a_job(failure_reason="[/x]"), [], total=0))


def test_silent_cell_is_marked() -> None:
    assert "ready (silent)" in drawn(cell_table([a_cell(silent=True)]))


def test_cells_show_free_capacity() -> None:
    page = drawn(cell_table([a_cell()]))
    assert "0.5 of 2 free" in page
    assert "1024 of 2048 MiB free" in page


def test_cells_show_their_labels_and_tags() -> None:
    page = drawn(cell_table([a_cell(labels={"zone": "a", "gb": "64"}, tags=["quiet", "ssd?"])]))
    assert "gb=64, zone=a, tag quiet, tag ssd?" in page


def test_job_page_shows_its_placement_requirements() -> None:
    constraints = [
        {"key": "zone", "op": "IN", "values": ["a", "b"]},
        {"key": "ssd", "op": "exists"},
    ]
    spec = {"constraints": constraints, "placement_tags": ["quiet"], "group_by": "rack"}
    page = drawn(job_page(a_job(coscheduled=True, spec=spec), [], total=0))
    assert "a gang on cells with the same rack · requires zone=a,b, ssd, tag quiet" in page
    assert "asks" not in drawn(job_page(a_job(spec=None), [], total=0))


def test_an_explanation_of_a_task_that_never_fits_has_no_internals_and_no_queue_position() -> None:
    text = (
        "larger than every cell of the pool: cell-1 comes closest and"
        " lacks 4179 of 9000 MiB of memory"
    )
    reason = {"code": "insufficient_resources", "text": text, "shortfall": {"memory_mib": 4179}}
    document = {
        "task": 1,
        "text": text,
        "reason": {**reason, "cell": "cell-1", "never_fits": True},
        "queue": {"position": 2, "of": 3},
    }
    shown = " ".join(drawn(explanation(document, "task 1")).split())
    assert shown.endswith(text)
    for internal in ("never_fits", "memory_mib", "position", "insufficient_resources"):
        assert internal not in shown


def test_an_explanation_shows_text_and_figures() -> None:
    document = {"state": "PENDING", "reason": {"text": "lacks", "shortfall": {"cpu": 2}}, "x": None}
    assert [line.strip() for line in drawn(explanation(document, "task 1")).splitlines()] == [
        "task 1",
        "state: PENDING",
        "reason:",
        "text: lacks",
        "shortfall:",
        "cpu: 2",
    ]


def test_finished_tasks_are_counted_over_all_groups() -> None:
    counts = {"a": {"phase": {"FAILED": 1, "RUNNING": 2}}, "b": {"phase": {"SUCCEEDED": 3}}}
    assert finished_count(a_job(task_status_count=counts)) == (4, 6)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("12:00:00.41", "0.4 s"),
        ("12:01:03", "1 m 03 s"),
        ("14:05:30", "2 h 05 m"),
    ],
)
def test_durations_are_formatted(end: str, text: str) -> None:
    assert duration_text("2026-11-20T12:00:00Z", f"2026-11-20T{end}Z") == text
    assert duration_text("2026-11-20T12:00:00Z", None) == ""
