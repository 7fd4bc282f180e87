"""A cell in the hands of an attacker does not end a process, and does not delay other cells.

The attacker has the key of `cell-2` and its logins at Redis, and nothing else.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis

from cellrun import Session
from controlplane.contract.messages.reports import Heartbeat
from controlplane.contract.wire import broker, envelope, keys, logins, queues
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.test_malformed import not_from_a_cell, not_messages
from tests.e2e.work import run_to_end, session_of
from tests.harness.hostile import BODIES, wrong_values

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("shared stack")]

NAME = "cell-2"
SHARD = queues.inbox_queue(NAME)
WAITING = 2_000
MOST = 200_000  # a bound in case the job does not end
JOB = {"name": "after", "task_type": "process", "command": ["true"]}


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture
def operator(stack: RunningStack) -> Iterator["redis.Redis[str]"]:
    url = stack.environment["CELERY_BROKER_URL"]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


class Attacker:
    """Uses the key of the cell and its two logins."""

    def __init__(self, stack: RunningStack, incarnation: str, sockets: ExitStack) -> None:
        self.key = keys.decode_key((stack.home / "cells" / NAME / "key").read_text().strip())
        self.incarnation, self.seq = incarnation, 1 << 40
        url = stack.environment["CELERY_BROKER_URL"]
        sender, receiver = (
            sockets.enter_context(redis.Redis.from_url(logins.with_login(url, user, self.key)))
            for user in (logins.sender(NAME), logins.receiver(NAME))
        )
        self.push, self.publish = sender.lpush, receiver.publish

    def sign(self, body: object) -> str:
        """Return a message for the inbox with a valid MAC."""
        self.seq += 1
        text = envelope.seal(
            keys.mac_key(self.key, keys.TO_CONTROL),
            cell=NAME,
            incarnation=self.incarnation,
            seq=self.seq,
            body=body,  # type: ignore[arg-type]
        )
        return broker.plain_message(SHARD, text)


@pytest.fixture
def attacker(stack: RunningStack, session: Session) -> Iterator[Attacker]:
    session.cordon(NAME)
    with ExitStack() as sockets:
        yield Attacker(stack, str(session.cell(NAME)["incarnation"]), sockets)  # type: ignore[typeddict-item]
    session.uncordon(NAME)


def own_processes(stack: RunningStack) -> dict[str, int]:
    """Every process but that of the attacker's cell."""
    return {name: pid for name, pid in stack.processes().items() if name != NAME}


def test_no_message_of_a_cell_ends_a_process(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]", attacker: Attacker
) -> None:
    before = own_processes(stack)
    assert {"web", "inbox", "placement", "convergence", "cell-1", "redis"} <= set(before)
    odd = [*not_messages(SHARD), *not_from_a_cell(SHARD)]
    attacker.push(SHARD, *odd, *(bytes([n]) * 1_000 for n in range(256)))
    for body in BODIES.values():
        attacker.push(SHARD, *(attacker.sign(wrong) for wrong in wrong_values(body)))
    for channel in ("worker.heartbeat", "task.received", "x"):
        for content in (*odd, b"\x00\xff" * 100, json.dumps({"type": channel, "hostname": None})):
            attacker.publish(f"/0.celeryev/{channel}", content)
    wait_until(lambda: not operator.llen(SHARD), seconds=60, what="the inbox has read all of it")
    job, _ = run_to_end(session, JOB)
    assert job["state"] == "SUCCEEDED"
    assert own_processes(stack) == before


def test_flood_of_a_cell_delays_no_other_cell(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]", attacker: Attacker
) -> None:
    """The queue of the cell is kept full while the job runs; the job ends all the same."""
    assert queues.inbox_queue("cell-1") != SHARD
    before = own_processes(stack)
    beat = Heartbeat(()).body()
    messages = [attacker.sign(beat) for _ in range(WAITING)]
    pushed, is_over = [0], threading.Event()

    def flood() -> None:
        while not is_over.is_set() and pushed[0] < MOST:
            if operator.llen(SHARD) < WAITING:
                attacker.push(SHARD, *messages)
                pushed[0] += WAITING

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        wait_until(lambda: pushed[0] > WAITING, seconds=10, what="the inbox reads the flood")
        job, _ = run_to_end(session, JOB)
    finally:
        is_over.set()
        thread.join()
    assert job["state"] == "SUCCEEDED"
    assert pushed[0] < MOST, "the flood ended before the job"
    wait_until(lambda: not operator.llen(SHARD), seconds=60, what="the inbox has read all of it")
    assert session.cell("cell-1")["state"] == "READY"
    assert own_processes(stack) == before
