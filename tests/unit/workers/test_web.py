"""What a cell takes for an answer of web, and how long it waits for one."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from tests.harness.web import Answer, Request
from tests.harness.web import Web as Server
from workers.attempt.transfer.transfers import OutputTransfer
from workers.control_api import HTTP_SECONDS, ControlPlaneUnavailable, Web

KEY = b"k" * 32


def test_only_an_answer_sealed_for_the_request_is_accepted() -> None:
    answers: list[Answer] = []

    def seal_answer(request: Request) -> Answer:
        *_, uid, endpoint = request.path.split("/")
        about = keys.about_answer(
            cell="a", attempt=uid, endpoint=endpoint, mac=request.headers["X-Cellrun-Mac"]
        )
        key = keys.mac_key(KEY, keys.SEAL)
        sealed = seal(
            key, json.dumps(endpoint).encode(), about=about, nonce=os.urandom(NONCE_BYTES)
        )
        answers.append(Answer(200, sealed))
        return answers[0]

    times = iter([1.0, 1.0, 2.0])
    with Server() as server:
        server.route = seal_answer
        web = Web(control_url=server.url, cell="a", key=KEY, now=lambda: next(times))
        assert web.fetch("u", "gang") == "gang"
        with pytest.raises(ControlPlaneUnavailable, match="not sealed"):
            web.fetch("u", "briefing")
        with pytest.raises(ControlPlaneUnavailable, match="not sealed"):
            web.fetch("u", "gang")  # later
        web.close()


class PatientWeb:
    """Takes pieces, and notes how long it would have been given for each."""

    def __init__(self) -> None:
        self.here = 0
        self.seconds: list[float] = []

    def call(self, method: str, path: str, body: bytes, seconds: float = HTTP_SECONDS) -> bytes:
        """One piece."""
        self.here += len(body)
        self.seconds.append(seconds)
        return json.dumps({"size": self.here}).encode()


def keep(tmp_path: Path, size: int, seconds: float = float("inf")) -> list[float]:
    """How long web is given for each piece of a file of that size."""
    web = PatientWeb()
    (tmp_path / "kept.json").write_text('{"base": null}')
    with (tmp_path / "file").open("wb") as file:
        file.truncate(size)
    context = SimpleNamespace(web=web, closed=SimpleNamespace(is_set=lambda: False))
    attempt: Any = SimpleNamespace(
        uid="u", workspace=tmp_path, context=context, is_broken_off=False
    )
    OutputTransfer(attempt, seconds=seconds).put("file", lambda: (tmp_path / "file").open("rb"))
    return web.seconds


def test_last_piece_of_a_large_file_gets_a_longer_timeout(tmp_path: Path) -> None:
    *others, last = keep(tmp_path, 32 * 2**20)
    assert set(others) == {HTTP_SECONDS}
    assert last >= 120.0
    assert keep(tmp_path, 5) == [HTTP_SECONDS]
    assert HTTP_SECONDS <= keep(tmp_path, 32 * 2**20, seconds=60.0)[-1] <= 60.0
