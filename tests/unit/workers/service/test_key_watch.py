"""The key watch restarts the process only for another key that web accepts."""

import hashlib
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controlplane.contract.wire import keys
from tests.harness.web import Answer, Request
from tests.harness.web import Web as Server
from workers.config import CellConfig
from workers.service.key_watch import KeyWatch

OLD, NEW, UNKNOWN = b"o" * 32, b"n" * 32, b"u" * 32


def answer(request: Request) -> Answer:
    """Answer as web does: 401 without a valid signature, 404 for an unknown attempt."""
    cell, at = request.headers["X-Cellrun-Cell"], request.headers["X-Cellrun-Time"]
    text = f"{cell}\n{at}\n{request.path}\n{hashlib.sha256(request.body).hexdigest()}"
    mac = request.headers["X-Cellrun-Mac"]
    valid = any(keys.is_signed(keys.mac_key(key, keys.UPLOAD), text, mac) for key in (OLD, NEW))
    return Answer(404 if valid else 401, b"{}")


def config_of(folder: Path, control_url: str) -> CellConfig:
    return CellConfig(
        name="a",
        key=OLD,
        home=folder,
        broker_url="redis://127.0.0.1:1/0",
        control_url=control_url,
        installation="test",
        capacity={},
        key_file=folder / "key",
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (keys.encode_key(OLD), False),
        (keys.encode_key(NEW) + "\n", True),
        (keys.encode_key(UNKNOWN), False),
        (keys.encode_key(NEW)[:20], False),
        ("", False),
        (None, False),
    ],
    ids=["the present key", "a new key", "a refused key", "half a key", "empty", "no file"],
)
def test_only_a_new_and_accepted_key_is_a_reason_to_restart(
    tmp_path: Path, content: str | None, expected: bool
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with Server() as server:
        server.route = answer
        assert KeyWatch(config_of(tmp_path, server.url), lambda: None).check() is expected


def test_key_is_not_taken_while_web_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(keys.encode_key(NEW))
    watch = KeyWatch(config_of(tmp_path, "http://127.0.0.1:1"), lambda: None)
    assert watch.check() is False


def test_refused_key_is_logged_once_and_tried_again_at_growing_intervals(tmp_path: Path) -> None:
    """Up to a minute: twelve polls."""
    (tmp_path / "key").write_text(keys.encode_key(UNKNOWN))
    tries: list[int] = []
    with Server() as server, capture_logs() as logged:
        server.route = answer
        watch = KeyWatch(config_of(tmp_path, server.url), lambda: None)
        for poll in range(60):
            before = len(server.requests)
            assert watch.check() is False
            tries += [poll] * (len(server.requests) - before)
        assert [line["event"] for line in logged] == ["new_key_not_accepted"]
        intervals = [later - first for first, later in pairwise(tries)]
        assert intervals[0] == 1
        assert intervals == sorted(intervals)
        assert intervals[-1] == 12
        # Another key is tried at once.
        (tmp_path / "key").write_text(keys.encode_key(NEW))
        assert watch.check() is True


def test_thread_continues_until_the_key_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(keys.encode_key(NEW))
    requests: list[Request] = []

    def answer_later(request: Request) -> Answer:
        requests.append(request)
        return answer(request) if len(requests) > 2 else Answer(503)

    changed = threading.Event()
    with Server() as server:
        server.route = answer_later
        watch = KeyWatch(config_of(tmp_path, server.url), changed.set, poll_seconds=0.001)
        watch.start()
        assert changed.wait(30)
        watch.close()
    assert len(requests) > 2
