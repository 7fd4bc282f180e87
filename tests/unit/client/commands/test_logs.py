"""`cellrun logs`: which tasks, which lines, and how they are prefixed."""

from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from cellrun.commands.jobs.logs import read_instant
from cellrun.errors import BadInput
from tests.unit.client.documents import AT, a_job, a_page, a_task
from tests.unit.client.stub_server import Api

NOW = datetime(2031, 5, 4, 12, tzinfo=UTC)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def serve_task(api: Api, uid: str, content: bytes) -> None:
    """Answer `content` as standard output, and nothing as standard error."""
    size = str(len(content))
    api.answer(f"GET /api/v1/attempts/{uid}/logs", content, X_Next_Cursor=size)
    api.answer(f"GET /api/v1/attempts/{uid}/logs", b"", X_Next_Cursor=size)
    api.answer(f"GET /api/v1/attempts/{uid}/logs", b"", X_Next_Cursor="0")
    api.answer(f"GET /api/v1/attempts/{uid}", {"uid": uid, "released_at": AT})


@pytest.fixture
def sweep(environment: Api) -> Api:
    """Job 7: task 0 succeeded in 2026, task 1 failed in 2031, task 2 runs."""
    fields = [
        {"state": "SUCCEEDED", "finished_at": AT},
        {"state": "FAILED", "finished_at": "2031-05-04T11:55:00Z"},
        {"state": "RUNNING"},
    ]
    tasks = []
    for n, each in enumerate(fields):
        tasks.append(a_task(id=70 + n, index=n, attempt_number=1, attempt_uid=f"u-{n}", **each))
        serve_task(environment, f"u-{n}", b"epoch 1\nloss %d\n" % n)
    environment.answer("GET /api/v1/jobs/7/tasks", a_page(*tasks))
    environment.answer("GET /api/v1/jobs/7", a_job())
    return environment


def test_only_failed_tasks_are_printed(sweep: Api) -> None:
    assert call("logs", "7", "--failed").stdout == "epoch 1\nloss 1\n"
    assert call("logs", "7", "--failed", "-f").exit_code == 2


def test_only_tasks_since_an_instant_are_printed(sweep: Api) -> None:
    result = call("logs", "7", "--since", "2031-05-04T11:00:00Z", "--grep", "loss")
    assert result.stdout == "main.1 | loss 1\nmain.2 | loss 2\n"


def test_only_lines_that_match_are_printed(sweep: Api) -> None:
    assert call("logs", "7", "--grep", "loss [02]").stdout == "main.0 | loss 0\nmain.2 | loss 2\n"
    wrong = call("logs", "7", "--grep", "(")
    assert (wrong.exit_code, "is not a regular expression" in wrong.stderr) == (2, True)


def test_several_jobs_are_named_in_each_line(sweep: Api) -> None:
    other = a_task(id=80, job=8, attempt_number=1, attempt_uid="u-8", state="SUCCEEDED")
    sweep.answer("GET /api/v1/jobs/8/tasks", a_page(other))
    serve_task(sweep, "u-8", b"hi\n")
    printed = call("logs", "7", "8", "--grep", "loss 1|hi").stdout
    assert printed == "7/main.1 | loss 1\n8/main.0 | hi\n"


def test_only_the_first_request_of_a_stream_is_for_last_lines(sweep: Api) -> None:
    call("logs", "7", "--failed", "--tail", "5")
    queries = [query for name, query, *_ in sweep.requests if name.endswith("u-1/logs")]
    assert queries == [
        "stream=stdout&after=0&tail=5",
        "stream=stdout&after=15",
        "stream=stderr&after=0&tail=5",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", datetime(2031, 5, 4, 11, 58, 30, tzinfo=UTC)),
        ("10m", datetime(2031, 5, 4, 11, 50, tzinfo=UTC)),
        ("1.5h", datetime(2031, 5, 4, 10, 30, tzinfo=UTC)),
        ("3d", datetime(2031, 5, 1, 12, tzinfo=UTC)),
        ("2031-05-04T10:00:00+02:00", datetime(2031, 5, 4, 8, tzinfo=UTC)),
        ("2031-05-04", datetime(2031, 5, 4, tzinfo=UTC)),
    ],
)
def test_time_is_a_span_or_an_instant(text: str, expected: datetime) -> None:
    assert read_instant(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "10", "10 m", "yesterday", "-5m"])
def test_wrong_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="expected 30s"):
        read_instant(text, NOW)
