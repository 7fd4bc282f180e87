"""Text of tasks and other users does not control the terminal of its reader."""

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from cellrun.display.visible import visible
from tests.unit.client.documents import AT, a_change, a_job, a_page, a_task
from tests.unit.client.stub_server import Api

UID = "01890a5d-ac96-774b-bcce-b302099a8057"
RUN = "from cellrun.cli import app; app()"
CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
HOSTILE = f"a{CLIPBOARD}b\x9b2Jc\x08\x7f\u202ed"
SHOWN = r"a\x1b]52;c;ZXZpbA==\x07b\x9b2Jc\x08\x7f\u202ed"
# Of what rich writes itself: colours and styles, and nothing else.
STYLES = re.compile(rb"\x1b\[[0-9;]*m")


def on_a_terminal(*words: str) -> bytes:
    """What the command writes to a pseudo-terminal."""
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *words],
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
        env={**os.environ, "COLUMNS": "300", "TERM": "xterm-256color"},
    ) as process:
        os.close(writer)
        found = b""
        while piece := _read(reader):
            found += piece
        process.wait(timeout=30)
    os.close(reader)
    return found


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


def into_a_pipe(*words: str) -> bytes:
    command = [sys.executable, "-c", RUN, *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout


def serve_logs(api: Api) -> None:
    attempt = {"uid": UID, "state": "SUCCEEDED", "released_at": AT}
    api.answer(f"GET /api/v1/attempts/{UID}", attempt)
    api.answer(f"GET /api/v1/attempts/{UID}/logs", f"{HOSTILE}\n".encode(), X_Next_Cursor="1")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="1")
    api.answer(f"GET /api/v1/attempts/{UID}/logs", b"", X_Next_Cursor="0")


def serve_job(api: Api) -> None:
    job = a_job(name=HOSTILE, state="FAILED", failure_reason=HOSTILE)
    task = a_task(state="SUCCEEDED", result=HOSTILE, group=HOSTILE)
    api.answer("GET /api/v1/jobs", a_page(job))
    api.answer("GET /api/v1/jobs/7", job)
    api.answer("GET /api/v1/jobs/7/tasks", a_page(task))


def serve_history(api: Api) -> None:
    serve_job(api)
    line = a_change(reason=HOSTILE, actor=HOSTILE)
    api.answer("GET /api/v1/jobs/7/history", a_page(line))


def serve_reasons(api: Api) -> None:
    api.answer("GET /api/v1/jobs/7", a_job(state="PENDING"))
    task = a_task(state="PENDING", pending_reason={"text": HOSTILE})
    api.answer("GET /api/v1/jobs/7/tasks", a_page(task))
    document = {"text": HOSTILE, "reason": {"text": HOSTILE, "code": HOSTILE}}
    api.answer(f"GET /api/v1/tasks/{task['id']}/explain", document)


def serve_artifacts(api: Api) -> None:
    item = {"name": HOSTILE, "size": 1, "sha256": HOSTILE, "uri": HOSTILE, "link": None}
    task = {"task": 1, "group": HOSTILE, "index": 0, "attempt": UID, "artifacts": [item]}
    api.answer("GET /api/v1/jobs/7/artifacts", a_page(task))


COMMANDS: dict[str, tuple[Callable[[Api], None], list[str]]] = {
    "logs": (serve_logs, ["logs", UID]),
    "job": (serve_job, ["job", "7"]),
    "jobs": (serve_job, ["jobs"]),
    "json": (serve_job, ["job", "7", "-o", "json"]),
    "history": (serve_history, ["history", "7"]),
    "artifacts": (serve_artifacts, ["artifacts", "7"]),
    "downloads": (serve_artifacts, ["artifacts", "7", "--get", "out"]),
    "explain": (serve_reasons, ["explain", "7"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_terminal_output_has_no_control_characters_from_the_server(
    environment: Api, name: str
) -> None:
    serve, words = COMMANDS[name]
    serve(environment)
    shown = STYLES.sub(b"", on_a_terminal(*words)).decode()
    assert re.findall("[^\n\r\t\x20-\x7e\xa0-\uffff]|\u202e", shown) == []
    assert "52;c;ZXZpbA==" in shown


def test_logs_on_a_terminal_show_escaped_control_characters(environment: Api) -> None:
    serve_logs(environment)
    assert on_a_terminal("logs", UID).decode().strip() == SHOWN


def test_raw_logs_are_unchanged(environment: Api) -> None:
    serve_logs(environment)
    assert HOSTILE.encode() in on_a_terminal("logs", "--raw", UID)


def left_an_artifact(api: Api) -> None:
    content = f"{HOSTILE}\n".encode() + b"\xff\xc3"
    digest = hashlib.sha256(content).hexdigest()
    uri = f"/api/v1/attempts/{UID}/artifacts/out"
    item = {"name": "out", "size": len(content), "sha256": digest, "uri": uri, "link": uri}
    api.answer(f"GET /api/v1/attempts/{UID}/artifacts", a_page(item))
    api.answer(f"GET {uri}", content)


def test_artifact_on_a_terminal_is_escaped(environment: Api) -> None:
    left_an_artifact(environment)
    shown = on_a_terminal("cp", f"{UID}:out", "-").decode()
    assert shown.split("\r\n") == [SHOWN, "\ufffd\ufffd"]


def test_artifact_in_a_pipe_is_unchanged(environment: Api) -> None:
    left_an_artifact(environment)
    assert into_a_pipe("cp", f"{UID}:out", "-") == f"{HOSTILE}\n".encode() + b"\xff\xc3"


def test_logs_in_a_pipe_are_unchanged(environment: Api) -> None:
    serve_logs(environment)
    assert into_a_pipe("logs", UID) == f"{HOSTILE}\n".encode()


def test_json_output_escapes_but_keeps_the_value(environment: Api) -> None:
    serve_job(environment)
    assert json.loads(into_a_pipe("job", "7", "-o", "json"))["failure_reason"] == HOSTILE


def test_text_without_control_characters_is_unchanged() -> None:
    text = "tab\tnewline\nümlaut \u00a0 漢字 😀"
    assert visible(text) == text
