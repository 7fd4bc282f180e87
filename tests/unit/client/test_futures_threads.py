"""A thread of a client that ends, or a server that is away, leaves no future open."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from cellrun import ApiError, AsyncExecutor, Client, ClientStopped, Executor, Job
from cellrun.api.session import Session
from cellrun.futures import threads
from cellrun.futures.bundles import Bundle
from cellrun.futures.promises import ServerFuture
from cellrun.futures.reader import OutcomeReader
from cellrun.futures.submitter import Submitter
from cellrun.futures.tracker import EventTracker
from cellrun.settings import ClientSettings
from tests.unit.client.stub_server import Api

AWAY = ClientSettings("http://127.0.0.1:9", "token")
JOB = Job(name="a", command=["true"])


@pytest.fixture
def settings(api: Api) -> ClientSettings:
    """A server whose stream of events is quiet, and which accepts job 7."""
    api.answer("GET /api/v1/events", b"id: 1-0\n\n" + b": \n\n" * 3)
    api.answer("POST /api/v1/jobs", {"id": 7}, status=201)
    api.answer("GET /api/v1/jobs", {"results": [{"id": 7, "state": "RUNNING"}], "next": None})
    return ClientSettings(api.url, "token")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the end of a client try an unavailable server for a short time."""
    monkeypatch.setattr(threads, "CLOSING_SECONDS", 0.3)


def fail(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory")


@pytest.mark.parametrize(
    ("part", "method"),
    [(EventTracker, "_follow"), (Submitter, "_submit"), (OutcomeReader, "_next")],
)
def test_thread_that_ends_fails_all_futures_and_the_client_accepts_no_more(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    monkeypatch.setattr(part, method, fail)
    with Client(settings) as client:
        future = client.submit(JOB)
        assert isinstance(future.exception(20), MemoryError)
        with pytest.raises(ClientStopped, match="no memory") as refused:
            client.submit(JOB)
        assert isinstance(refused.value.__cause__, MemoryError)


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
@pytest.mark.parametrize("part", [EventTracker, Submitter, OutcomeReader])
def test_client_whose_threads_cannot_start_accepts_no_more(
    settings: ClientSettings,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    part: type,
    fault: BaseException,
) -> None:
    def refuse(_: object) -> None:
        raise fault

    monkeypatch.setattr(part, "start", refuse)
    with Client(settings) as client:
        with pytest.raises(type(fault)):
            client.submit(JOB)
        with pytest.raises(ClientStopped):
            client.submit(JOB)


def test_callback_that_exits_leaves_no_other_future_open(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(_: Future[Any]) -> None:
        raise SystemExit(3)

    with Client(settings, linger_seconds=0.2) as client:
        monkeypatch.setattr("cellrun.api.session.Session.submit_all", fail)
        first, second = client.submit(JOB), client.submit(JOB)
        first.add_done_callback(leave)
        assert first.exception(20) is not None
        assert second.exception(20) is not None


def test_client_ends_soon_while_the_server_is_away(quick: None) -> None:
    client = Client(AWAY)
    future = client.submit(JOB)
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 10
    assert future.exception(0) is not None


def test_interrupted_program_ends_soon_while_the_server_is_away(quick: None) -> None:
    begin = time.monotonic()
    executor = Executor(AWAY)
    future = executor.submit(["true"])
    executor.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert time.monotonic() - begin < 10
    assert future.cancelled()


def test_jobs_that_an_unavailable_server_did_not_cancel_are_named(
    api: Api,
    settings: ClientSettings,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.answer("POST /api/v1/jobs/7/cancel", {"title": "Unavailable"}, status=503, Retry_After="9")
    accepted = threading.Event()

    def send(_: Submitter, __: Session, found: Sequence[Bundle]) -> None:
        found[0].accept(7)
        accepted.set()

    monkeypatch.setattr(Submitter, "_send", send)
    with caplog.at_level(logging.WARNING, "cellrun"), Client(settings) as client:
        future = client.submit(JOB)
        assert accepted.wait(20)
        future.cancel()
    assert "a job was not cancelled: run cellrun cancel 7" in caplog.text


def test_submitter_continues_after_a_callback_that_exits(
    api: Api, settings: ClientSettings
) -> None:
    def leave(_: Future[Any]) -> None:
        raise SystemExit(3)

    refusal = {"title": "Bad Request", "status": 400, "detail": "no"}
    api.answers["POST /api/v1/jobs"] = []
    api.answer("POST /api/v1/jobs", refusal, status=400)
    with Client(settings) as client:
        first = client.submit(JOB)
        first.add_done_callback(leave)
        assert isinstance(first.exception(20), ApiError)
        assert isinstance(client.submit(JOB).exception(20), ApiError)


def test_callback_that_submits_does_not_wait_for_its_own_thread(
    api: Api, settings: ClientSettings, quick: None
) -> None:
    """With too many open futures, only this thread could end one."""
    api.answers["POST /api/v1/jobs"] = []
    api.answer("POST /api/v1/jobs", {"title": "Bad Request", "detail": "no"}, status=400)
    made = queue.SimpleQueue[Future[Any]]()
    executor = Executor(settings, max_in_flight=1, linger_seconds=0.2)

    def submit_more(_: Future[Any]) -> None:
        for _number in range(2):
            made.put(executor.submit(["true"]))

    executor.submit(["true"]).add_done_callback(submit_more)
    for _number in range(2):
        assert isinstance(made.get(timeout=5).exception(20), ApiError)
    executor.shutdown()


@pytest.mark.parametrize("place", ["add_done_callback", "put"])
def test_interrupted_submit_leaves_nothing_to_wait_for(
    settings: ClientSettings, quick: None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    executor = Executor(settings)
    monkeypatch.setattr(ServerFuture if place == "add_done_callback" else Client, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        executor.submit(["true"])
    ended = threading.Thread(target=executor.shutdown, daemon=True)
    ended.start()
    ended.join(5)
    assert not ended.is_alive()


def test_cancelled_call_of_submit_leaves_no_work_behind(
    settings: ClientSettings, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, made = Executor.submit, queue.SimpleQueue[Future[Any]]()

    def submit_and_note(*args: Any) -> Any:
        future = submit(*args)
        made.put(future)
        return future

    monkeypatch.setattr(Executor, "submit", submit_and_note)

    async def main() -> None:
        async with AsyncExecutor(settings=settings, max_in_flight=1) as executor:
            first = await executor.submit(["true"])
            made.get(timeout=20)
            second = asyncio.create_task(executor.submit(["true"]))
            await asyncio.sleep(0)  # it begins
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            first.cancel()  # there is room for the second call
            future = await asyncio.to_thread(made.get, timeout=20)
            while not future.done():
                await asyncio.sleep(0)
            assert future.cancelled()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_end_of_the_block_does_not_wait_for_threads_that_wait_in_submit(
    settings: ClientSettings, quick: None
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(max_workers=2))
        executor = AsyncExecutor(settings=settings, max_in_flight=1)
        await executor.submit(["true"])
        waiting = [asyncio.create_task(executor.submit(["true"])) for _ in range(3)]
        await asyncio.sleep(0)  # they begin
        await executor.shutdown(cancel_futures=True)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(fault, RuntimeError) for fault in found), found

    asyncio.run(asyncio.wait_for(main(), 20))
