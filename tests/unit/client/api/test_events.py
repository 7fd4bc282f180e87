"""The follower of events: it continues behind the last change, and ends when it is closed."""

import json
import threading
from typing import Any

import pytest

from cellrun.api import events as followers
from cellrun.api.session import Session
from cellrun.errors import ApiError, BadInput, ClientError
from tests.unit.client.stub_server import Api

CALL = "GET /api/v1/events"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the follower connect again at once."""
    monkeypatch.setattr(followers, "FIRST_PAUSE_SECONDS", 0.0)


def a_change(position: str, job: int = 7, **more: Any) -> bytes:
    """A change as the API sends it."""
    found = {
        "at": "2031-05-04T12:00:00Z",
        "job": job,
        "task": f"{job}/main.0",
        "task_id": 70,
        "from": "PENDING",
        "to": "RUNNING",
        "reason": "started",
        **more,
    }
    return f"id: {position}\nevent: task\ndata: {json.dumps(found)}\n\n".encode()


def test_change_has_its_fields(api: Api, session: Session) -> None:
    api.answer(CALL, b"retry: 2000\nid: p0\n\n" + a_change("p1") + b": keep-alive\nid: p2\n\n")
    follower = session.events(follow=False)
    [change] = list(follower)
    assert (change.position, change.kind, change.job, change.task) == ("p1", "task", 7, "7/main.0")
    assert (change.task_id, change.before, change.after) == (70, "PENDING", "RUNNING")
    assert (change.reason, change.at) == ("started", "2031-05-04T12:00:00Z")
    assert follower.position == "p2"
    assert api.requests[0][1] == "follow=false"


def test_filters_are_sent(api: Api, session: Session) -> None:
    api.answer(CALL, a_change("p1"))
    with session.events(jobs=[9, 7], project="lab", kind="task", after="p0") as follower:
        next(follower)
    _, query, headers, _ = api.requests[0]
    assert query == "job=7%2C9&project=lab&kind=task"
    assert headers["Last-Event-ID"] == "p0"
    with pytest.raises(BadInput, match="at most 1,000 jobs"):
        session.events(jobs=range(1, 1002))


def test_follower_continues_behind_the_last_change_after_each_kind_of_trouble(
    api: Api, session: Session
) -> None:
    api.answer(CALL, a_change("p1"))
    for status in (502, 503, 504):
        api.answer(CALL, {"title": "Unavailable"}, status, Retry_After="0")
    api.answer(CALL, {"title": "Too many"}, 429, Retry_After="0")
    api.answer(CALL, a_change("p2")[:40])
    api.answer(CALL, a_change("p2"))
    troubles: list[ClientError] = []
    with session.events(since="2031-05-04T12:00:00Z", on_trouble=troubles.append) as follower:
        assert [next(follower).position, next(follower).position] == ["p1", "p2"]
    assert len(troubles) == 6
    assert [headers.get("Last-Event-ID") for _, _, headers, _ in api.requests] == [
        None,
        *["p1"] * 6,
    ]
    assert [query for _, query, _, _ in api.requests] == [
        "since=2031-05-04T12%3A00%3A00Z",
        *[""] * 6,
    ]


@pytest.mark.parametrize("status", [401, 404, 410])
def test_errors_that_no_try_helps_are_raised(api: Api, session: Session, status: int) -> None:
    api.answer(CALL, {"title": "No"}, status)
    with pytest.raises(ApiError) as caught:
        session.events().open()
    assert caught.value.status == status
    assert len(api.requests) == 1


def test_open_follower_misses_no_change_if_the_stream_breaks_before_its_first_position(
    api: Api, session: Session
) -> None:
    api.answer(CALL, b"retry: 2000\n")
    api.answer(CALL, b"retry: 2000\nid: p0\n\n")
    api.answer(CALL, a_change("p1"))
    with session.events().open() as follower:
        # From here on, all changes are included: it has connected twice already.
        assert len(api.requests) == 2
        assert next(follower).position == "p1"
    assert api.requests[2][2]["Last-Event-ID"] == "p0"


def test_follower_gives_up_after_its_patience(api: Api, session: Session) -> None:
    api.answer(CALL, {"title": "Unavailable"}, 503, Retry_After="0")
    with pytest.raises(ApiError):
        session.events(patience_seconds=0).open()


def test_follower_is_closed_from_another_thread(api: Api, session: Session) -> None:
    api.files["/api/v1/events"] = a_change("p1") * 2
    api.cuts = [len(a_change("p1"))]
    api.resume.clear()
    follower = session.events().open()
    assert next(follower).position == "p1"
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(follower))
    waiting.start()
    follower.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert found == []
    api.resume.set()
