"""`cellrun ps`: open jobs with their owners and ages."""

from datetime import UTC, datetime

from rich.console import Console
from typer.testing import CliRunner

from cellrun.cli import app
from cellrun.display.render import process_table
from tests.unit.client.documents import a_job, a_page
from tests.unit.client.stub_server import Api


def test_open_jobs_are_requested_and_ids_are_for_scripts(environment: Api) -> None:
    environment.answer("GET /api/v1/whoami", {"user": "ann"})
    environment.answer("GET /api/v1/jobs", a_page(a_job(), a_job(id=6)))
    environment.answer("GET /api/v1/jobs", a_page())
    done = CliRunner().invoke(app, ["ps", "--mine", "-q"])
    assert (done.exit_code, done.stdout) == (0, "7\n6\n")
    query = "owner=ann&state=pending%2Cassigned%2Cbuilding%2Crunning&limit=50"
    assert environment.requests[-1][1] == query
    assert CliRunner().invoke(app, ["ps", "-a"]).stdout == "no jobs\n"
    assert environment.requests[-1][1] == "limit=50"
    assert CliRunner().invoke(app, ["ps"]).stdout == "no open jobs\n"


def test_age_and_elapsed_time_count_until_now_or_the_end() -> None:
    now = datetime(2026, 11, 20, 14, 5, tzinfo=UTC)
    ended = a_job(id=6, state="FAILED", finished_at="2026-11-20T12:01:03Z")
    table = process_table([a_job(), ended], now)
    table.drop_wide()
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    _, first, second = captured.get().splitlines()
    assert first.split()[2] == "ann"
    assert first.rstrip().endswith("2 h 05 m  2 h 05 m")
    assert second.rstrip().endswith("2 h 05 m  1 m 03 s")
