"""`--output`: one document in five forms, and tables without and with their wide columns."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.display.test_visible import HOSTILE, into_a_pipe, on_a_terminal
from tests.unit.client.documents import a_cache_entry, a_cell, a_job, a_page, a_task
from tests.unit.client.stub_server import Api

JOBS = "GET /api/v1/jobs"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def two_jobs(api: Api) -> list[dict[str, object]]:
    found = [a_job(id=8, name="b", labels={"team": "ml"}), a_job(id=7, name="a", guid="x/7")]
    api.answer(JOBS, a_page(*found))
    return found


def test_yaml_and_json_have_the_same_document(environment: Api) -> None:
    jobs = two_jobs(environment)
    assert yaml.safe_load(call("jobs", "-o", "yaml").stdout) == jobs
    assert json.loads(call("jobs", "--output", "json").stdout) == jobs
    assert json.loads(call("jobs", "--output=json").stdout) == jobs


def test_name_prints_the_address_that_other_commands_take(environment: Api) -> None:
    two_jobs(environment)
    environment.answer("GET /api/v1/cells", a_page(a_cell(name="cell-1"), a_cell(name="cell-2")))
    environment.answer("GET /api/v1/jobs/7", a_job(id=7))
    assert call("jobs", "-o", "name").stdout == "8\n7\n"
    assert call("cells", "-o", "name").stdout == "cell-1\ncell-2\n"
    assert call("status", "7", "-o", "name").stdout == "7\n"
    environment.answer("GET /api/v1/cache", a_page(a_cache_entry(key="model:1")))
    assert call("cache", "list", "-o", "name").stdout == "model:1\n"


def test_name_of_results_without_names_is_an_error(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(id=7))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(id=70, state="PENDING")))
    environment.answer("GET /api/v1/tasks/70/explain", {"task": 70, "text": "waits"})
    result = call("explain", "7", "-o", "name")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("cellrun: --output: name: these results have no names")


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("$[*].name", "b\na\n"),
        ("[*].name", "b\na\n"),
        ("{[*].name}", "b\na\n"),
        ("{$[0].labels}", '{"team": "ml"}\n'),
        ("[?@.name == 'a'].id", "7\n"),
        ("[*].guid", "null\nx/7\n"),
        ("..team", "ml\n"),
        ("[*].nothing", ""),
    ],
)
def test_jsonpath_prints_each_value_on_a_line(
    environment: Api, expression: str, printed: str
) -> None:
    found = two_jobs(environment)
    found[0]["guid"] = None
    environment.answer(JOBS, a_page(*found))
    result = call("jobs", "-o", f"jsonpath={expression}")
    assert (result.exit_code, result.stdout) == (0, printed)


def test_jsonpath_of_one_object_needs_no_sign_at_its_beginning(environment: Api) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(id=7, state="RUNNING"))
    for expression in (".state", "state", "{.state}", "$.state"):
        assert call("status", "7", "-o", f"jsonpath={expression}").stdout == "RUNNING\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("xml", "'xml' is none of table, wide, json, yaml, name, jsonpath=EXPR"),
        ("json=x", "'json=x' is none of table"),
        ("jsonpath", "jsonpath needs an expression, as in jsonpath=.id"),
        ("jsonpath=", "jsonpath needs an expression"),
        ("jsonpath={.[", "'{.[' is no JSONPath such as .id or [*].name: "),
        ("jsonpath=[?", "'[?' is no JSONPath such as .id or [*].name: "),
        ("jsonpath=" + "[?(" * 3000, "is no JSONPath such as .id or [*].name: "),
        ("jsonpath={.id} {.name}", "is no JSONPath such as .id or [*].name: "),
    ],
)
def test_wrong_output_is_refused_before_any_request(environment: Api, text: str, why: str) -> None:
    for words in (["jobs"], ["cancel", "7"], ["token", "list"]):
        result = call(*words, "-o", text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert why in result.stderr
        assert result.stderr.startswith("cellrun: --output: ")
        assert result.stderr.count("\n") == 1
    assert environment.requests == []


def test_wide_has_more_columns_and_the_table_does_not(environment: Api) -> None:
    two_jobs(environment)
    narrow, wide = call("jobs").stdout.splitlines(), call("jobs", "-o", "wide").stdout.splitlines()
    assert narrow == call("jobs", "-o", "table").stdout.splitlines()
    assert "GUID" not in narrow[0]
    assert wide[0].split()[-4:] == ["OWNER", "BAND", "GUID", "LABELS"]
    assert "team=ml" in wide[1]
    assert "x/7" in wide[2]
    environment.answer("GET /api/v1/jobs/7", a_job(id=7))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(guid="g-1")))
    assert "g-1" in call("job", "7", "-o", "wide").stdout
    assert "g-1" not in call("job", "7").stdout
    listed = call("ps", "-o", "wide").stdout.splitlines()
    assert listed[0].split()[-5:] == ["PROJECT", "POOL", "BAND", "GUID", "LABELS"]
    assert "x/7" in listed[2]
    assert "x/7" not in call("ps").stdout
    environment.answer("GET /api/v1/cells", a_page(a_cell(mismatch="older than the others")))
    assert "older than the others" in call("cells", "-o", "wide").stdout
    assert "older than the others" not in call("cells").stdout


@pytest.mark.parametrize("form", ["table", "wide", "yaml", "json", "name", "jsonpath=[*].name"])
def test_a_pipe_gets_no_styles(environment: Api, form: str) -> None:
    two_jobs(environment)
    assert "\x1b" not in into_a_pipe("jobs", "-o", form).decode()


@pytest.mark.parametrize("form", ["yaml", "wide", "jsonpath=.failure_reason"])
def test_a_terminal_gets_no_control_characters_of_the_server(environment: Api, form: str) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(id=7, failure_reason=HOSTILE))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task()))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("job", "7", "-o", form).decode())
    assert re.findall("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", shown) == []
    assert "52;c;ZXZpbA==" in shown


@pytest.mark.parametrize("text", [HOSTILE, "ümlaut 漢字", "\u202e", "a: b\n- c", "\x85\ufeff"])
def test_yaml_keeps_the_value_of_any_text(environment: Api, text: str) -> None:
    environment.answer("GET /api/v1/jobs/7", a_job(id=7, failure_reason=text))
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(a_task()))
    shown = call("job", "7", "-o", "yaml").stdout
    assert yaml.safe_load(shown)["failure_reason"] == text
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown) == []
    assert ("漢字" in shown) == ("漢字" in text)
