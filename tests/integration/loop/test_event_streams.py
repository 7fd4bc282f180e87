"""Streams of events: no change is lost, nothing is read without a role, streams can continue."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import connection

from controlplane import clock
from controlplane.api import charges
from controlplane.api.streams import event_feed, event_stream, token_watches
from controlplane.api.streams.event_feed import EventFeed
from controlplane.api.streams.event_query import write_position
from controlplane.api.streams.event_stream import EventStream
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import ApiToken, Job, Membership, Project, Task, Transition
from tests.integration.api.asgi import make_scope
from tests.integration.api.conftest import change_setting
from tests.integration.loop.conftest import Loop

# A stream waits for the transactions of all databases of the cluster, also those of other tests.
pytestmark = pytest.mark.serial

DEADLINE_SECONDS = 20
POLL_SECONDS = 0.01


async def behind(scope: Any, receive: Any, send: Any) -> None:
    """Stands for Django."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def make_application(**settings: Any) -> EventStream:
    """A web process."""
    return EventStream(behind, EventFeed(poll_seconds=POLL_SECONDS, **settings))


@dataclass
class Reader:
    """A client with an open stream."""

    called: ApplicationCommunicator
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    position: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    ended: bool = False

    async def read(self, count: int) -> list[dict[str, Any]]:
        """Read until there are so many events; return and forget all that were received."""
        while len(self.events) < count and not self.ended:
            await self.read_part()
        assert len(self.events) >= count
        found, self.events = self.events, []
        return found

    async def read_to_end(self) -> list[dict[str, Any]]:
        """Read until the server ends the stream."""
        while not self.ended:
            await self.read_part()
        return self.events

    async def read_part(self) -> None:
        """Read one message of the server."""
        message = await self.called.receive_output(DEADLINE_SECONDS)
        self.ended = not message.get("more_body", False)
        for block in message["body"].decode().split("\n\n"):
            lines = [line.partition(": ") for line in block.split("\n") if line]
            fields = {name: value for name, _, value in lines}
            self.position = fields.get("id", self.position)
            if "" in fields:
                self.comments.append(fields[""])
            if "data" in fields:
                document = json.loads(fields["data"])
                self.events.append({"kind": fields["event"], "id": fields["id"], **document})


@asynccontextmanager
async def opened(
    application: EventStream, token: str, query: str = "", last_id: str | None = None
) -> AsyncIterator[Reader]:
    """A client that hangs up at the end of the block."""
    headers = [(b"authorization", f"Bearer {token}".encode())]
    if last_id is not None:
        headers.append((b"last-event-id", last_id.encode()))
    scope = make_scope("GET", f"/api/v1/events?{query}", *headers)
    called = ApplicationCommunicator(application, scope)
    await called.send_input({"type": "http.request", "body": b"", "more_body": False})
    start = await called.receive_output(DEADLINE_SECONDS)
    reader = Reader(called, start["status"], dict(start["headers"]))
    await reader.read_part()
    yield reader
    await called.send_input({"type": "http.disconnect"})
    await called.wait(DEADLINE_SECONDS)


def run(test: Coroutine[Any, Any, Any]) -> Any:
    """Run a test in a loop."""
    return asyncio.run(asyncio.wait_for(test, 3 * DEADLINE_SECONDS))


async def apart(work: Callable[[], Any]) -> Any:
    """Run work that uses the database in a thread of its own."""

    def run_closing() -> Any:
        try:
            return work()
        finally:
            connection.close()

    return await asyncio.to_thread(run_closing)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def token_of(loop: Loop) -> str:
    """Return a new token of the owner."""
    count = ApiToken.objects.count()
    return create_api_token(
        user=loop.owner, name=f"test-{count}", role=Role.SUBMITTER, now=clock.now()
    )


def submit(loop: Loop) -> int:
    """Return the id of a new job."""
    return int(loop.submit().pk)


def add(job_id: int, reason: str, at: Any = None) -> None:
    """A change of the state of a job."""
    Transition.objects.create(
        job_id=job_id,
        from_state=TaskState.PENDING,
        to_state=TaskState.RUNNING,
        reason=reason,
        at=at or clock.now(),
    )


def reasons(events: list[dict[str, Any]]) -> list[str]:
    """The reasons of events."""
    return [event["reason"] for event in events]


def test_stream_has_the_changes_of_a_job_and_its_tasks(loop: Loop) -> None:
    token = token_of(loop)
    loop.cell()

    async def follow() -> None:
        async with opened(make_application(), token) as reader:
            assert reader.status == 200
            assert reader.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
            assert reader.position
            job = await apart(lambda: submit(loop))
            [submitted] = await reader.read(1)
            await apart(loop.place)
            placed = (await reader.read(1))[0]
            task = await apart(lambda: Task.objects.get(job_id=job))
        assert submitted.keys() == {
            *("kind", "id", "at", "job", "task", "task_id", "from", "to", "reason", "text")
        }
        assert (submitted["kind"], submitted["job"], submitted["task"]) == ("job", job, None)
        assert (submitted["from"], submitted["to"]) == (None, "PENDING")
        assert (placed["kind"], placed["job"], placed["task_id"]) == ("task", job, task.pk)
        assert (placed["task"], placed["reason"]) == (f"{job}/main.0", "placed")
        assert (placed["from"], placed["to"]) == ("PENDING", "ASSIGNED")

    run(follow())


def test_a_change_wakes_the_streams(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream neither waits for its next check of the token nor for the next keep-alive."""
    monkeypatch.setattr(token_watches, "TOKEN_SECONDS", 3_600)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 3_600)
    token = token_of(loop)

    async def follow() -> None:
        async with opened(make_application(), token) as reader:
            job = await apart(lambda: submit(loop))
            assert [event["job"] for event in await reader.read(1)] == [job]

    run(follow())


INSERT = """
INSERT INTO controlplane_transition (job_id, from_state, to_state, reason, message, actor, at)
VALUES (%s, 1, 3, %s, '', '', now())
"""


async def connect_apart() -> psycopg.AsyncConnection[Any]:
    """A connection whose transactions stay open during a test."""
    options = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    login = {name: options[name] for name in names if options.get(name)}
    return await psycopg.AsyncConnection.connect(**login)


def test_change_that_commits_later_than_one_with_a_larger_id_is_not_lost(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, slow, fast = token_of(loop), submit(loop), submit(loop)
    application, polls = make_application(), list[int]()
    load_end = event_feed.load_end
    monkeypatch.setattr(event_feed, "load_end", lambda: polls.append(1) or load_end())

    async def follow() -> None:
        async with (
            opened(application, token) as first,
            await connect_apart() as open_one,
            await connect_apart() as other,
        ):
            await open_one.execute("SELECT FROM controlplane_job WHERE id = %s FOR UPDATE", [slow])
            await open_one.execute(INSERT, [slow, "slow"])
            await other.execute(INSERT, [fast, "fast"])
            await other.commit()
            seen = len(polls)
            await until(lambda: len(polls) > seen + 5)
            # What a client has received until now is behind its position.
            async with opened(application, token, last_id=first.position) as second:
                await open_one.commit()
                await apart(lambda: add(fast, "last"))
                await until_reason(second, "last")
                await until_reason(first, "last")
        for reader in (first, second):
            assert sorted(reasons(reader.events)) == ["fast", "last", "slow"]

    run(follow())


def test_change_of_the_only_open_transaction_is_not_lost(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, slow = token_of(loop), submit(loop)
    application, polls = make_application(), list[int]()
    load_end = event_feed.load_end
    monkeypatch.setattr(event_feed, "load_end", lambda: polls.append(1) or load_end())

    async def follow() -> None:
        async with (
            opened(application, token) as reader,
            await connect_apart() as open_one,
        ):
            await open_one.execute("SELECT FROM controlplane_job WHERE id = %s FOR UPDATE", [slow])
            await open_one.execute(INSERT, [slow, "slow"])
            seen = len(polls)
            await until(lambda: len(polls) > seen + 5)
            await open_one.commit()
            await apart(lambda: add(slow, "last"))
            await until_reason(reader, "last")
        assert reasons(reader.events) == ["slow", "last"]

    run(follow())


async def until_reason(reader: Reader, reason: str) -> None:
    """Read until there is an event with this reason."""
    while reason not in reasons(reader.events):
        await reader.read_part()


def test_stream_continues_behind_each_event_after_a_restart_of_web(loop: Loop) -> None:
    token, job = token_of(loop), submit(loop)

    async def follow() -> None:
        async with opened(make_application(), token) as reader:
            start = reader.position
            for number in range(5):
                await apart(lambda number=number: add(job, f"r{number}"))
            events = await reader.read(5)
        assert reasons(events) == [f"r{number}" for number in range(5)]
        await apart(lambda: add(job, "r5"))
        for number, last_id in enumerate([start, *(event["id"] for event in events)]):
            async with opened(make_application(), token, last_id=last_id) as again:
                expected = [f"r{left}" for left in range(number, 6)]
                assert reasons(await again.read(len(expected))) == expected
        async with opened(make_application(), token, f"after={events[3]['id']}") as again:
            assert reasons(await again.read(2)) == ["r4", "r5"]

    run(follow())


def test_stream_that_fell_behind_what_is_kept_reads_the_history(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.queries.events.PAGE_ROWS", 3)
    token, job, other = token_of(loop), submit(loop), submit(loop)

    async def follow() -> None:
        application = make_application(kept_events=4)
        async with opened(application, token) as first:
            start = first.position
            for number in range(20):
                await apart(lambda number=number: add(job, f"r{number}"))
            await apart(lambda: add(other, "other"))
            await until_reason(first, "other")
            for query in ("", f"job={job},{other}"):
                async with opened(application, token, query, last_id=start) as second:
                    expected = [*(f"r{number}" for number in range(20)), "other"]
                    assert reasons(await second.read(21)) == expected

    run(follow())


def test_filters_select_jobs_and_kinds(loop: Loop) -> None:
    token, job, other = token_of(loop), submit(loop), submit(loop)
    task = Task.objects.get(job_id=job)

    def change() -> None:
        add(other, "other")
        add(job, "job")
        Transition.objects.create(
            job_id=job,
            task_id=task.pk,
            from_state=TaskState.PENDING,
            to_state=TaskState.ASSIGNED,
            reason="task",
            at=clock.now(),
        )
        # No change of state.
        Transition.objects.create(
            job_id=job,
            task_id=task.pk,
            from_state=TaskState.RUNNING,
            to_state=TaskState.RUNNING,
            reason="same",
            at=clock.now(),
        )
        add(job, "end")
        add(other, "end")

    async def follow() -> None:
        application = make_application()
        async with (
            opened(application, token) as whole,
            opened(application, token, f"job={job}") as of_job,
            opened(application, token, f"job={job},{other}&kind=job") as of_jobs,
            opened(application, token, "kind=task") as of_tasks,
            opened(application, token, "project=default/default") as of_project,
        ):
            await apart(change)
            assert reasons(await whole.read(5)) == ["other", "job", "task", "end", "end"]
            assert reasons(await of_job.read(3)) == ["job", "task", "end"]
            assert reasons(await of_jobs.read(4)) == ["other", "job", "end", "end"]
            assert reasons(await of_tasks.read(1)) == ["task"]
            assert reasons(await of_project.read(5)) == ["other", "job", "task", "end", "end"]

    run(follow())


def test_past_changes_end_with_the_present(loop: Loop) -> None:
    token, job = token_of(loop), submit(loop)
    Transition.objects.all().delete()
    for minutes in (120, 60, 0):
        add(job, f"r{minutes}", at=clock.now() - timedelta(minutes=minutes))

    since = (clock.now() - timedelta(minutes=90)).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def follow() -> None:
        for query, expected in (
            (f"since={since}", ["r60", "r0"]),
            ("", []),
        ):
            async with opened(make_application(), token, f"follow=false&{query}") as reader:
                assert reasons(await reader.read_to_end()) == expected

    run(follow())


def test_changes_of_other_projects_are_left_out(loop: Loop) -> None:
    home = Project.objects.get()
    other = Project.objects.create(domain=home.domain, name="other")
    token, job, foreign = token_of(loop), submit(loop), submit(loop)
    Job.objects.filter(pk=foreign).update(project=other)
    user, _ = create_user(name="reader", password=None, is_operator=False)
    Membership.objects.create(user=user, project=other, role="viewer", created_at=clock.now())
    theirs = create_api_token(user=user, name="t", role=Role.VIEWER, now=clock.now())
    Membership.objects.filter(user=loop.owner).delete()
    Membership.objects.create(user=loop.owner, project=home, role="viewer", created_at=clock.now())

    def change() -> None:
        for number in range(3):
            add(job, f"own{number}")
            add(foreign, f"foreign{number}")

    async def follow() -> None:
        application = make_application()
        async with (
            opened(application, token) as mine,
            opened(application, theirs) as other_reader,
            opened(application, token, f"job={job},{foreign}") as by_job,
        ):
            start = mine.position
            await apart(change)
            for reader in (mine, by_job):
                assert reasons(await reader.read(3)) == ["own0", "own1", "own2"]
            assert reasons(await other_reader.read(3)) == ["foreign0", "foreign1", "foreign2"]
            async with opened(make_application(), token, last_id=start) as again:
                assert reasons(await again.read(3)) == ["own0", "own1", "own2"]
        for query in ("project=default/other", f"job={foreign}", "job=4711"):
            async with opened(application, token, query) as refused:
                assert refused.status == 299

    run(follow())


@pytest.mark.parametrize("query", ["", "project=default/default"])
def test_revoked_token_ends_the_stream(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(token_watches, "TOKEN_SECONDS", 0)
    token = token_of(loop)

    async def follow() -> None:
        async with opened(make_application(), token, query) as reader:
            await apart(ApiToken.objects.all().delete)
            assert await reader.read_to_end() == []

    run(follow())


def test_lost_role_ends_the_stream_of_its_project_and_hides_changes(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_watches, "TOKEN_SECONDS", 0)
    token, job = token_of(loop), submit(loop)

    async def follow() -> None:
        application = make_application()
        async with (
            opened(application, token, "project=default/default") as of_project,
            opened(application, token) as whole,
        ):
            await apart(Membership.objects.all().delete)
            assert await of_project.read_to_end() == []
            await apart(lambda: add(job, "hidden"))
            monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 0)
            while len(whole.comments) < 20:
                await whole.read_part()
            assert whole.events == []

    run(follow())


def test_stream_ends_when_its_token_has_no_units(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(token_watches, "TOKEN_SECONDS", 0)
    monkeypatch.setattr(charges, "_buckets", Buckets(now=lambda: 0.0))
    change_setting(settings, request_units_per_second=1, request_burst_units=20)
    token = token_of(loop)

    async def follow() -> None:
        async with opened(make_application(), token) as reader:
            await reader.read_to_end()

    run(follow())


def test_streams_of_a_token_are_limited(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_STREAMS", 2)
    monkeypatch.setattr(token_watches, "MAX_STREAMS", 2)
    token, another = token_of(loop), token_of(loop)

    async def follow() -> None:
        application = make_application()
        async with opened(application, token), opened(application, token):
            async with opened(application, token) as third:
                assert (third.status, third.headers[b"retry-after"]) == (429, b"10")
            async with opened(application, another) as others:
                assert others.status == 200
        async with opened(application, token) as again:
            assert again.status == 200

    run(follow())


def test_many_streams_cost_the_statements_of_one(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[int]()
    load = event_feed.load_events
    monkeypatch.setattr(event_feed, "load_events", lambda *range_: reads.append(1) or load(*range_))
    token, job = token_of(loop), submit(loop)

    async def follow() -> None:
        application = make_application()
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(opened(application, token)) for _ in range(10)
            ]
            await apart(lambda: add(job, "one"))
            for reader in readers:
                assert reasons(await reader.read(1)) == ["one"]

    run(follow())
    assert len(reads) == 1


def test_client_that_takes_nothing_is_disconnected(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    token, job = token_of(loop), submit(loop)
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)
        if b"data:" in message.get("body", b""):
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def follow() -> None:
        scope = make_scope("GET", "/api/v1/events", (b"authorization", f"Bearer {token}".encode()))
        called = asyncio.ensure_future(make_application()(scope, receive, send))
        await until(lambda: len(sent) == 2)
        await apart(lambda: add(job, "one"))
        await called

    run(follow())
    assert len(sent) == 3


def test_quiet_stream_sends_comments_with_its_position(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 0.02)
    token, job, other = token_of(loop), submit(loop), submit(loop)

    async def follow() -> None:
        application = make_application()
        async with (
            opened(application, token) as whole,
            opened(application, token, f"job={job}") as of_job,
        ):
            await apart(lambda: add(other, "other"))
            [event] = await whole.read(1)
            while row_of(of_job.position) < row_of(event["id"]):
                await of_job.read_part()
            assert set(of_job.comments) == {"keep-alive"}
            position = of_job.position
        async with opened(make_application(), token, last_id=position) as again:
            await apart(lambda: add(other, "new"))
            assert reasons(await again.read(1)) == ["new"]
        assert event["reason"] == "other"

    run(follow())


def row_of(position: str) -> int:
    """The row of a position."""
    plain = base64.urlsafe_b64decode(position + "=" * (-len(position) % 4)).decode()
    return int(plain.partition(".")[0])


def test_old_or_foreign_positions_are_not_admitted(loop: Loop) -> None:
    token, job = token_of(loop), submit(loop)
    for _ in range(3):
        add(job, "r")
    now = clock.now()
    last = Transition.objects.latest("pk").pk
    Transition.objects.filter(pk__lt=last).delete()
    positions = {
        "present": (write_position(last, now), 200),
        "of yesterday": (write_position(last, now - timedelta(hours=25)), 299),
        "of another history": (write_position(last + 10, now), 299),
        "before the first row": (write_position(last - 1, now), 200),
        "before a deleted row": (write_position(last - 2, now), 299),
        "malformed": ("x", 299),
    }

    async def follow() -> None:
        for name, (position, status) in positions.items():
            async with opened(make_application(), token, last_id=position) as reader:
                assert (name, reader.status) == (name, status)

    run(follow())


@pytest.mark.parametrize("presented", ["wrong", ""])
def test_stream_needs_a_token(loop: Loop, presented: str) -> None:
    async def follow() -> None:
        async with opened(make_application(), presented) as reader:
            assert reader.status == 299

    run(follow())
