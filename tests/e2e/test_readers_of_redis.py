"""What a reader of Redis learns of a job: names and states, and no content."""

import base64
import re
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis

from cellrun import Session
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import run_to_end, session_of

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("shared stack")]

BODY = re.compile(r'"body": "([A-Za-z0-9+/=]*)"')


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


class Reader:
    """Reads every command that reaches Redis, and every key, with the login of the operator."""

    def __init__(self, url: str) -> None:
        self._client: redis.Redis[str] = redis.Redis.from_url(url, decode_responses=True)
        self._texts: list[str] = []
        self._ready = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        with self._client.monitor() as monitor:
            self._ready.set()
            for command in monitor.listen():
                self._texts.append(command["command"])
                if self._closing:
                    return

    def keys(self) -> str:
        """Return every key with its value, as text."""
        texts = []
        for key in self._client.scan_iter():
            kind = self._client.type(key)
            value = self._client.lrange(key, 0, -1) if kind == "list" else self._client.dump(key)
            texts.append(f"{key} {kind} {value!r}")
        return "\n".join(texts)

    def seen(self) -> str:
        """Return all commands so far, each followed by the decoded bodies of its messages."""
        texts = []
        for text in list(self._texts):
            bodies = [base64.b64decode(body).decode() for body in BODY.findall(text)]
            texts += [text, *bodies]
        return "\n".join(texts)

    def close(self) -> None:
        self._closing = True
        self._client.ping()
        self._thread.join(10)
        self._client.close()


@pytest.fixture
def reader(stack: RunningStack) -> Iterator[Reader]:
    reader = Reader(stack.environment["CELERY_BROKER_URL"])
    yield reader
    reader.close()


def test_a_reader_of_redis_finds_no_content_of_a_job(
    stack: RunningStack, session: Session, reader: Reader
) -> None:
    marker = f"marker-{uuid4().hex}"
    session.put_secret("hidden", {"value": f"{marker}-secret"})
    script = "\n".join(
        [
            f": {marker}-command",
            'cat "$CELLRUN_ROOT/in"; echo "$VARIABLE $SECRET"',
            f'echo "{marker}-result" > "$CELLRUN_ROOT/result"',
        ]
    )
    job = {
        "name": "watched",
        "task_type": "process",
        "command": ["sh", "-c", script],
        "env": {"VARIABLE": f"{marker}-env"},
        "inputs": [{"path": "/in", "content": f"{marker}-input"}],
        "secrets": [{"name": "hidden", "env": "SECRET"}],
        "result_file": "/result",
    }
    _, task = run_to_end(session, job)
    assert task["state"] == "SUCCEEDED", task
    assert f"{marker}-result" in str(task)
    failing = {"name": "failing", "task_type": "process", "command": [f"/{marker}-program"]}
    _, failed = run_to_end(session, failing)
    assert failed["state"] == "FAILED"
    assert f"{marker}-program" in str(failed)
    # The reader reads what is not sealed: orders and reports passed it too.
    readable = (str(failed["attempt_uid"]), "attempt.watched", "heartbeat")
    wait_until(
        lambda: all(text in reader.seen() for text in readable),
        seconds=30,
        what="an event of Flower, a report and a heartbeat",
    )
    seen = reader.seen() + reader.keys()
    assert re.search(r"LPUSH cell\.cell-[12]\.", seen)
    assert marker not in seen
    assert "signature=" not in seen
    assert "/api/v1/store/" not in seen
