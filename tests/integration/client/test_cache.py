"""`cellrun cache` against the API: a hit names its origin, and an eviction lets tasks run again."""

import json
from collections.abc import Callable

import pytest
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner, Result

from cellrun.cli import app
from controlplane import clock
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.states import TaskState as S
from controlplane.domain.roles import Role
from controlplane.models import Job
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import token_of
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage

Call = Callable[..., Result]
CACHE = {"enabled": True, "key": "model:2031"}


@pytest.fixture
def cellrun(
    stage: Stage, live_server: LiveServer, served: None, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """The command, with a token of the user that submits the stage's jobs."""
    token = create_api_token(user=stage.owner, name="test", role=Role.SUBMITTER, now=clock.now())
    monkeypatch.setenv("CELLRUN_URL", live_server.url)
    monkeypatch.setenv("CELLRUN_TOKEN", token)
    return lambda *words: CliRunner().invoke(app, list(words))


def submit(stage: Stage) -> Job:
    job = stage.submit_small(cache=CACHE)
    stage.converge()
    stage.place()
    return job


def populate(stage: Stage) -> Job:
    stage.cell()
    job = submit(stage)
    stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result="42")
    stage.converge()
    return job


def test_hit_names_its_origin_everywhere(stage: Stage, cellrun: Call) -> None:
    first = populate(stage)
    second = submit(stage)
    origin = f"result of job {first.pk}, task {stage.task(first).pk}"
    assert f"HIT: {origin}  42" in cellrun("job", str(second.pk)).stdout
    assert "POPULATED  42" in cellrun("job", str(first.pk)).stdout
    explained = cellrun("explain", "--task", str(stage.task(second).pk))
    assert f"ended SUCCEEDED with the {origin}" in explained.stdout
    document = json.loads(cellrun("job", str(second.pk), "-o", "json").stdout)["tasks"][0]
    assert (document["cache_status"], document["cache_key"]) == ("HIT", "model:2031@1")
    assert document["cache_origin"]["attempt_uid"] == str(stage.last(first).pk)
    [entry] = json.loads(cellrun("cache", "list", "-o", "json").stdout)
    assert (entry["key"], entry["hits"]) == ("model:2031@1", 1)
    assert entry["origin"]["submitter"] == stage.owner.username
    assert "42" in cellrun("cache", "show", "model:2031@1").stdout


def test_evicted_entry_is_not_used_again(
    stage: Stage, cellrun: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(stage)
    hit = submit(stage)
    with monkeypatch.context() as other:
        other.setenv("CELLRUN_TOKEN", token_of("bob", Role.SUBMITTER))
        refused = cellrun("cache", "evict", "model:2031@1", "--yes")
        assert (refused.exit_code, "[403]" in refused.stderr) == (2, True)
    done = cellrun("cache", "evict", "model:2031@1", "--yes")
    assert (done.exit_code, done.stdout) == (0, "cache entry model:2031@1 is evicted\n")
    assert cellrun("cache", "list").stdout == "no cache entries\n"
    again = cellrun("cache", "evict", "model:2031@1", "--yes")
    assert (again.exit_code, "has no cache entry model:2031@1 [404]" in again.stderr) == (2, True)
    assert stage.states(submit(stage)) == ["ASSIGNED"]
    assert "HIT" in cellrun("job", str(hit.pk)).stdout
