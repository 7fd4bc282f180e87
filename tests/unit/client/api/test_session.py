"""The Python client against a real socket: what it sends, what it makes of what comes back."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from cellrun.api import polling
from cellrun.api.session import Session
from cellrun.errors import ApiError, StillOpen, Unreachable
from cellrun.settings import ClientSettings
from tests.unit.client.documents import a_job, a_page, a_task
from tests.unit.client.stub_server import Api


def test_every_call_carries_the_token(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", a_job())
    assert session.job(7)["name"] == "sweep"
    call, _, headers, _ = api.requests[0]
    assert call == "GET /api/v1/jobs/7"
    assert headers["Authorization"] == "Bearer secret-token"


def test_netrc_does_not_override_the_token(
    api: Api, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password of-another-service\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    api.answer("GET /api/v1/jobs/7", a_job())
    session.job(7)
    assert api.requests[0][2]["Authorization"] == "Bearer secret-token"


def test_next_page_is_requested_from_the_configured_host(api: Api, session: Session) -> None:
    elsewhere = "http://internal.invalid:8000/api/v1/jobs?limit=3&cursor=x"
    api.answer("GET /api/v1/jobs", a_page(a_job(id=9), a_job(id=8), following=elsewhere))
    api.answer("GET /api/v1/jobs", a_page(a_job(id=7), a_job(id=6)))
    assert [job["id"] for job in session.jobs(limit=3, state="running")] == [9, 8, 7]
    queries = [query for _, query, _, _ in api.requests]
    assert queries == ["state=running&limit=3", "limit=3&cursor=x"]


def test_a_problem_document_becomes_an_error_that_names_the_field(
    api: Api, session: Session
) -> None:
    fault = {"field": "replicas", "detail": "must be from 1 to 10000"}
    problem = {
        "title": "Unprocessable Content",
        "detail": "replicas: must be from 1 to 10000",
        "errors": [fault],
    }
    api.answer("POST /api/v1/jobs", problem, 422)
    with pytest.raises(ApiError) as caught:
        session.submit({"name": "x", "replicas": 0})
    assert caught.value.status == 422
    assert caught.value.lines() == ["replicas: must be from 1 to 10000 [422]"]


def test_several_faults_are_one_line_each(api: Api, session: Session) -> None:
    faults = [{"field": "a", "detail": "is wrong"}, {"field": "", "detail": "all is wrong"}]
    problem = {"title": "Bad", "detail": "a: is wrong (and 1 more)", "errors": faults}
    api.answer("POST /api/v1/jobs", problem, 422)
    with pytest.raises(ApiError) as caught:
        session.submit({})
    assert caught.value.lines() == [
        "the request has 2 faults [422]",
        "  a: is wrong",
        "  all is wrong",
    ]


@pytest.mark.parametrize(
    ("status", "line"), [(500, "Broken [500, request a-1]"), (404, "Broken [404]")]
)
def test_a_failure_of_the_server_names_its_request(
    api: Api, session: Session, status: int, line: str
) -> None:
    api.answer("GET /api/v1/jobs/7", {"title": "Broken", "request_id": "a-1"}, status)
    with pytest.raises(ApiError) as caught:
        session.job(7)
    assert caught.value.lines() == [line]


def test_an_error_without_a_document_names_the_address(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", b"<h1>nginx</h1>", 500)
    with pytest.raises(ApiError, match=f"HTTP 500 from {api.url}"):
        session.job(7)


def test_response_that_is_not_json_is_refused(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", b"<html>welcome</html>")
    with pytest.raises(Unreachable, match="not Cellrun's API"):
        session.job(7)


def test_redirect_is_not_followed_to_protect_the_token(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", b"", 302, Location="http://elsewhere.invalid/")
    with pytest.raises(Unreachable, match=r"redirects to http://elsewhere\.invalid/"):
        session.job(7)


def test_refused_connection_is_one_line_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "RESTART_PAUSES", (0.0, 0.0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable) as caught:
            Session(ClientSettings(url, "t")).job(7)
    assert caught.value.lines() == [f"no valid response from {url}: connection refused"]


def test_an_unknown_host_is_one_line() -> None:
    with pytest.raises(Unreachable) as caught:
        Session(ClientSettings("http://nowhere.invalid", "t")).job(7)
    [line] = caught.value.lines()
    assert line.startswith("no valid response from http://nowhere.invalid: ")
    assert len(line) < 120


def test_wait_returns_the_finished_job_and_reports_state_changes(
    api: Api, session: Session
) -> None:
    done = a_job(state="SUCCEEDED")
    for job in (a_job(state="PENDING"), a_job(state="PENDING"), a_job(), done):
        api.answer("GET /api/v1/jobs/7", job)
    states: list[str] = []
    assert session.wait(7, on_change=lambda job: states.append(job["state"])) == done
    assert states == ["PENDING", "RUNNING", "SUCCEEDED"]


def test_wait_survives_a_server_restart(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", {"title": "Service Unavailable"}, 503)
    api.answer("GET /api/v1/jobs/7", a_job(state="FAILED"))
    assert session.wait(7)["state"] == "FAILED"


def test_any_request_is_repeated_after_the_pause_of_a_throttled_one(
    api: Api, session: Session
) -> None:
    throttled = {"title": "Too Many Requests", "status": 429}
    for _ in range(3):
        api.answer("POST /api/v1/jobs", throttled, 429, Retry_After="0")
    api.answer("POST /api/v1/jobs", a_job(), 201)
    assert session.submit({"name": "sweep"})["id"] == 7
    assert [sent for *_, sent in api.requests] == [{"name": "sweep"}] * 4


def test_a_client_that_stays_throttled_gives_up(
    api: Api, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "THROTTLED_TRIES", 2)
    api.answer("GET /api/v1/jobs/7", {"title": "Too Many Requests"}, 429, Retry_After="0")
    with pytest.raises(ApiError, match="Too Many Requests") as caught:
        session.job(7)
    assert caught.value.status == 429
    assert len(api.requests) == 3


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("0", 0.0), (None, 1.0), ("soon", 1.0), ("-1", 1.0)]
)
def test_the_pause_is_the_one_of_the_server_or_a_second(header: str | None, seconds: float) -> None:
    assert ApiError(429, {}, "http://a", retry_after=header).pause_seconds == seconds


def test_wait_gives_up_at_its_deadline(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", a_job())
    with pytest.raises(StillOpen, match="job 7"):
        session.wait(7, deadline_seconds=0.1)


def test_wait_does_not_repeat_a_refused_request(api: Api, session: Session) -> None:
    with pytest.raises(ApiError):
        session.wait(7, deadline_seconds=30)
    assert len(api.requests) == 1


def test_log_piece_has_the_next_cursor(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/attempts/u-1/logs", b"hello\n", X_Next_Cursor="6")
    piece = session.log("u-1", "stderr", "0")
    assert (piece.content, piece.cursor) == (b"hello\n", "6")
    assert api.requests[0][1] == "stream=stderr&after=0"


def test_names_are_quoted_in_addresses(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/tasks/a%2Fb%20c", a_task())
    assert session.task("a/b c")["id"] == 70


@pytest.mark.parametrize("status", [502, 503, 504])
def test_requests_with_one_effect_are_repeated_while_the_server_restarts(
    api: Api, session: Session, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(polling, "RESTART_PAUSES", (0.0, 0.0))
    calls: dict[str, Callable[[], object]] = {
        "GET /api/v1/jobs/7": lambda: session.job(7),
        "POST /api/v1/jobs": lambda: session.submit({"name": "x", "guid": "g"}),
        "POST /api/v1/jobs/7/retry": lambda: session.retry_job(7, key="k"),
    }
    for call, send in calls.items():
        api.answer(call, {"title": "Unavailable"}, status)
        api.answer(call, {"title": "Unavailable"}, status, Retry_After="0")
        api.answer(call, a_job())
        send()
    assert [call for call, *_ in api.requests] == [call for call in calls for _ in range(3)]


def test_requests_that_could_act_twice_are_not_repeated(
    api: Api, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "RESTART_PAUSES", (0.0,))
    for send in (lambda: session.submit({"name": "x"}), lambda: session.retry_job(7)):
        api.answer("POST /api/v1/jobs", {"title": "Unavailable"}, 503)
        api.answer("POST /api/v1/jobs/7/retry", {"title": "Unavailable"}, 503)
        with pytest.raises(ApiError):
            send()
    assert len(api.requests) == 2


def test_long_pause_of_the_server_is_not_waited_for(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs/7", {"title": "Unavailable"}, 503, Retry_After="30")
    with pytest.raises(ApiError):
        session.job(7)
    assert len(api.requests) == 1


def test_refused_connection_is_tried_again_with_any_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: list[Api] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    def start(_: float) -> None:
        server = Api(port)
        server.answer("POST /api/v1/jobs", a_job())
        servers.append(server)

    monkeypatch.setattr(polling.time, "sleep", start)
    with Session(ClientSettings(f"http://127.0.0.1:{port}", "t")) as session:
        assert session.submit({"name": "x"})["id"] == 7
    [server] = servers
    server.close()
