"""`cellrun history`: lines as people read them, and which history is requested."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.commands.jobs.history import history_table
from cellrun.documents import Change
from tests.unit.client.documents import AT, a_change, a_page, a_task
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"
LATER = "2026-11-20T12:05:00Z"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def line(change: Change) -> str:
    console = Console(file=io.StringIO(), width=250, color_system=None)
    console.print(history_table([change]))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(drawn.splitlines()[1].split()[1:])


def test_history_line_has_change_reason_actor_and_duration() -> None:
    assert line(a_change()).endswith(
        "main.0 (attempt 1) pending → assigned placed on a cell (cell-1) placement 1.5 s"
    )
    ended = a_change(
        to_state="FAILED",
        from_state="RUNNING",
        text="ended badly",
        message="exit status 3 [/x]",
        actor="cell-1",
        seconds=None,
        longest_seconds=None,
        still=1,
    )
    assert line(ended).endswith("running → failed ended badly: exit status 3 [/x] cell-1")


def test_times_are_whole_on_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    merged = a_change(count=3, tasks=3, task_name=None, last_at=LATER, actor="cell-2, cell-1")
    console.print(history_table([a_change(), merged]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line) for line in lines) <= 80
    times = [line.split("  ")[0] for line in lines if line.startswith("2026-")]
    assert [len(time) for time in times] == [len("2026-11-20 12:00:00"), len(times[1])]
    assert " … " in times[1]
    assert times[1].endswith(":05:00")


def test_state_that_still_lasts_is_marked() -> None:
    assert line(a_change(seconds=None, longest_seconds=None, still=1)).endswith("still there")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"count": 7}, "main.0, 7 times pending"),
        ({"count": 1_000, "tasks": 1_000, "task_name": None}, "1000 tasks pending"),
        ({"count": 9, "tasks": 3, "task_name": None}, "3 tasks, 9 times pending"),
        ({"tasks": 0, "task_name": None, "from_state": None}, "job assigned"),
        ({"from_state": "PENDING", "to_state": "PENDING"}, "main.0 (attempt 1) assigned"),
    ],
)
def test_merged_changes_are_counted(facts: dict[str, object], words: str) -> None:
    assert words in line(a_change(**facts))


def test_merged_changes_have_a_time_span_and_the_longest_stay() -> None:
    drawn = line(a_change(count=7, last_at=LATER, seconds=63, longest_seconds=9))
    assert "… " in drawn
    assert drawn.endswith("1 m 03 s in total, 9.0 s at most")


def test_history_of_a_job_is_shown_oldest_first(environment: Api) -> None:
    newest, oldest = a_change(id=2, task_name="main.2"), a_change(id=1, task_name="main.1")
    environment.answer("GET /api/v1/jobs/7/history", a_page(newest, oldest))
    shown = call("history", "7").stdout
    assert shown.index("main.1") < shown.index("main.2")
    assert environment.requests[0][1] == "merged=true&limit=101"
    assert json.loads(call("history", "7", "-o", "json").stdout) == [newest, oldest]


def test_history_beyond_the_limit_is_marked_as_left_out(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7/history", a_page(a_change(id=2), a_change(id=1)))
    shown = call("history", "7", "--limit", "1", "--unmerged").stdout
    assert "… earlier changes are omitted" in shown
    assert shown.count("placed on a cell") == 1
    assert environment.requests[0][1] == "merged=false&limit=2"


def test_task_is_selected_by_its_id_only_with_the_option(environment: Api) -> None:
    environment.answer("GET /api/v1/tasks/70", a_task())
    environment.answer("GET /api/v1/tasks/70/history", a_page(a_change(first_at=AT)))
    assert "placed on a cell" in call("history", "70", "--task").stdout
    assert "[404]" in call("history", "70").stderr


def test_uid_shows_the_history_of_an_attempt(environment: Api) -> None:
    environment.answer(f"GET /api/v1/attempts/{UID}", {"uid": UID})
    environment.answer(f"GET /api/v1/attempts/{UID}/history", a_page(a_change()))
    assert "placed on a cell" in call("history", UID).stdout
    assert call("history", "4711").exit_code == 2
