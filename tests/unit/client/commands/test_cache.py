"""`cellrun cache`, and the use of the cache in the table of a job's tasks."""

import json

from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.display.render import task_table
from tests.unit.client.display.test_render import drawn
from tests.unit.client.documents import a_cache_entry, a_page, a_task
from tests.unit.client.stub_server import Api

KEY = "model:2031@1"
PATH = "/api/v1/cache/model%3A2031%401"


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["cache", *words], input=typed)


def test_list_shows_origin_and_use(environment: Api) -> None:
    listed = a_cache_entry(result=None, outputs=None)
    environment.answer("GET /api/v1/cache", a_page(listed))
    result = call("list")
    assert result.exit_code == 0
    [_, line] = result.stdout.splitlines()
    for shown in (KEY, "project", "job 12, task 40 of ann", "3", "1.5 KiB"):
        assert shown in line
    assert json.loads(call("list", "-o", "json").stdout) == [listed]


def test_list_sends_its_filters(environment: Api) -> None:
    environment.answer("GET /api/v1/cache", a_page())
    result = call("list", "--project", "lab/genes", "--scope", "domain", "--key", KEY)
    assert (result.exit_code, result.stdout) == (0, "no cache entries\n")
    query = environment.requests[-1][1]
    for sent in ("domain=lab", "project=genes", "scope=domain", "key=model%3A2031%401"):
        assert sent in query
    assert call("list", "--scope", "world").exit_code == 2


def test_show_prints_result_and_outputs(environment: Api) -> None:
    environment.answer(f"GET {PATH}", a_cache_entry())
    shown = call("show", KEY).stdout
    for text in (KEY, "default/default", "job 12, task 40 of ann", "42", "model", "abababababab"):
        assert text in shown
    assert json.loads(call("show", KEY, "-o", "json").stdout)["outputs_count"] == 1


def test_entry_of_a_deleted_user_is_shown(environment: Api) -> None:
    entry = a_cache_entry(outputs=[])
    entry["origin"]["submitter"] = None
    environment.answer(f"GET {PATH}", entry)
    shown = call("show", KEY).stdout
    assert "job 12, task 40" in shown
    assert "task 40 of" not in shown
    assert "OUTPUT" not in shown


def test_evict_requires_confirmation(environment: Api) -> None:
    environment.answer(f"GET {PATH}", a_cache_entry())
    environment.answer(f"DELETE {PATH}", b"", 204)
    refused = call("evict", KEY, typed="n\n")
    assert refused.exit_code == 1
    assert f"Evict the cache entry {KEY} (job 12, task 40 of ann)?" in refused.stderr
    assert all(name.startswith("GET") for name, *_ in environment.requests)
    assert call("evict", KEY, typed="y\n").stdout == f"cache entry {KEY} is evicted\n"
    done = call("evict", KEY, "--yes", "--scope", "domain", "--project", "lab/genes", "-o", "json")
    assert json.loads(done.stdout)["key"] == KEY
    name, query, *_ = environment.requests[-1]
    assert name == f"DELETE {PATH}"
    assert query == "domain=lab&project=genes&scope=domain"


def test_unknown_entry_is_one_line(environment: Api) -> None:
    problem = {"title": "Not Found", "detail": f"project default/default has no cache entry {KEY}"}
    environment.answer(f"GET {PATH}", problem, 404)
    for words in (["show", KEY], ["evict", KEY, "-y"]):
        result = call(*words)
        assert (result.exit_code, result.stderr) == (
            2,
            f"cellrun: project default/default has no cache entry {KEY} [404]\n",
        )


def test_tasks_show_their_use_of_the_cache() -> None:
    origin = {"job": 12, "task": 40, "attempt_uid": "u"}
    hit = a_task(state="SUCCEEDED", cache_status="HIT", cache_origin=origin, result="42")
    stored = a_task(state="SUCCEEDED", cache_status="POPULATED")
    head, first, second, third = drawn(task_table([hit, stored, a_task()])).splitlines()
    assert "CACHE" in head
    assert "HIT: result of job 12, task 40  42" in first
    assert "POPULATED" in second
    assert "DISABLED" not in third
    assert "CACHE" not in drawn(task_table([a_task()]))


def test_no_project_is_left_to_the_server(environment: Api) -> None:
    environment.answer("GET /api/v1/cache", a_page())
    assert call("list").exit_code == 0
    assert "project" not in environment.requests[-1][1]
