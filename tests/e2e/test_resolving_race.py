"""Clients race over HTTP, on two web processes, for one task: one wins, the others get 409."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.stand import Stand, Wanted, standing
from tests.e2e.stack import check_invariants, remnants

RESOLVERS = 1_000
OTHERS = 50
SECONDS = 60.0
BUSY = 503

Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing(Wanted(cells=1, webs=2)) as found:
        yield found
        check_invariants(found.plan.control_environment("command"))
    assert remnants(found.plan.home.root.parent) == []


def race(stand: Stand, clients: int, method: str, path: str, body: Any = None) -> list[Answer]:
    """The same request of so many clients at once, each on its connection to one of the webs."""
    return asyncio.run(_race(stand, clients, _request(stand, method, path, body)))


async def _race(stand: Stand, clients: int, request: bytes) -> list[Answer]:
    started = asyncio.Barrier(clients)

    async def take_part(url: str) -> Answer:
        reader, writer = await _connect(url)
        await started.wait()
        answer = await _exchange(reader, writer, request)
        # Many clients may wait longer for the database than web allows: web asks them to retry.
        while answer[0] == BUSY:
            answer = await _exchange(*await _connect(url), request)
        return answer

    async with asyncio.timeout(SECONDS):
        urls = [stand.urls[number % len(stand.urls)] for number in range(clients)]
        return await asyncio.gather(*map(take_part, urls))


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> Answer:
    try:
        writer.write(request)
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split()[1]), json.loads(content) if content else None


def _request(stand: Stand, method: str, path: str, body: Any) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} /api/v1/{path} HTTP/1.1",
        f"Host: {urlsplit(stand.plan.url).netloc}",
        f"Authorization: Bearer {stand.plan.credentials.submitter_token}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def call(stand: Stand, method: str, path: str, body: Any = None) -> Answer:
    [answer] = race(stand, 1, method, path, body)
    return answer


def statuses(answers: list[Answer]) -> Counter[int]:
    return Counter(status for status, _ in answers)


def desired(guid: str) -> dict[str, Any]:
    definition = {
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"},
    }
    return {"guid": guid, "domain": "races", "definition": definition}


def completed_task(stand: Stand) -> str:
    """The guid of a task that has completed."""
    guid = f"raced-{uuid.uuid4()}"
    status, made = call(stand, "POST", "tasks", desired(guid))
    assert status == 201, made
    stand.wait_until(
        lambda: call(stand, "GET", f"tasks/{guid}")[1]["lifecycle"] == "COMPLETED",
        "the task has completed",
        seconds=SECONDS,
    )
    return guid


def test_one_of_a_thousand_concurrent_resolvers_gets_the_claim(stand: Stand) -> None:
    guid = completed_task(stand)
    answers = race(stand, RESOLVERS, "POST", f"tasks/{guid}/resolving")
    assert statuses(answers) == {200: 1, 409: RESOLVERS - 1}
    [claim] = [body["claim"] for status, body in answers if status == 200]
    with stand.connect() as connection:
        statement = "SELECT claim::text FROM controlplane_oneoff WHERE guid = %s"
        assert connection.execute(statement, [guid]).fetchall() == [(claim,)]
    assert call(stand, "DELETE", f"tasks/{guid}?claim={uuid.uuid4()}")[0] == 409
    # Its holder is in several places at once, too: one deletes, and nothing is there for others.
    deletions = race(stand, OTHERS, "DELETE", f"tasks/{guid}?claim={claim}")
    assert statuses(deletions) == {204: 1, 404: OTHERS - 1}
    assert call(stand, "GET", f"tasks/{guid}")[0] == 404


def test_one_of_fifty_concurrent_submissions_of_a_guid_creates_the_task(stand: Stand) -> None:
    guid = f"raced-{uuid.uuid4()}"
    answers = race(stand, OTHERS, "POST", "tasks", desired(guid))
    assert statuses(answers) == {201: 1, 409: OTHERS - 1}
    with stand.connect() as connection:
        statement = """
            SELECT count(*), count(o.task_id), min(o.guid) FROM controlplane_job j
            LEFT JOIN controlplane_oneoff o ON o.job_id = j.id WHERE j.guid = %s
            """
        assert connection.execute(statement, [guid]).fetchall() == [(1, 1, guid)]
