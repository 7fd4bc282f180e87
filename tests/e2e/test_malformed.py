"""No message in a queue stops a process: malformed ones are dropped, the next are handled."""

import base64
import json
from collections.abc import Iterator

import pytest
import redis

from cellrun import Session
from controlplane.contract.wire import broker, envelope, queues
from tests.e2e.stack import RunningStack, is_running, wait_until
from tests.e2e.work import run_to_end, session_of

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("shared stack")]

DEEP = "[" * 100_000
ODD_TAGS = (True, None, 1, [1], {"a": 1}, "")
ODD: tuple[object, ...] = ("x", -1, 10**30, 1.5, None, [], {"a": 1})


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture
def lists(stack: RunningStack) -> Iterator["redis.Redis[str]"]:
    with redis.Redis.from_url(
        stack.environment["CELERY_BROKER_URL"], decode_responses=True
    ) as connection:
        yield connection


def outer(queue: str, **changes: object) -> str:
    """A message as it lies in a list, with some of its parts replaced, or left out (None)."""
    message = json.loads(broker.plain_message(queue, "text")) | changes
    return json.dumps({name: value for name, value in message.items() if value is not None})


def properties_with(queue: str, **changes: object) -> dict[str, object]:
    """Properties of a message, with some of them replaced."""
    properties: dict[str, object] = json.loads(broker.plain_message(queue, ""))["properties"]
    return {**properties, **changes}


def not_messages(queue: str) -> list[str]:
    """Return what is no message at all, or one that cannot be unpacked."""
    return [
        "",
        "garbage",
        "null",
        "3",
        "[]",
        "{}",
        '"text"',
        DEEP,
        outer(queue, properties=None),
        outer(queue, properties={}),
        outer(queue, properties=[]),
        # Redis takes no booleans as delivery tags, and sets hold no lists.
        *(outer(queue, properties=properties_with(queue, delivery_tag=tag)) for tag in ODD_TAGS),
        *(outer(queue, properties=properties_with(queue, body_encoding=odd)) for odd in ODD),
        *(outer(queue, properties=properties_with(queue, priority=odd)) for odd in ODD),
        outer(queue, headers=None),
        outer(queue, headers=7),
        outer(queue, headers={f"name-{number}": "x" * 20 for number in range(2_000)}),
        outer(queue, headers={"task": [], "id": {}}),
        outer(queue, headers={"task": queues.ORDERS_TASK, "id": None, "eta": 7}),
        outer(queue, headers={"task": queues.ORDERS_TASK, "id": "1", "timelimit": "x"}),
        outer(queue, headers={"compression": 7}),
        outer(queue, body=None),
        outer(queue, body=12),
        outer(queue, body="%%% not base64 %%%"),
        outer(queue, body=base64.b64encode(b"\xff\xfe not text").decode()),
        outer(queue, body=base64.b64encode(b"{not json").decode()),
        outer(queue, body=base64.b64encode(DEEP.encode()).decode()),
        outer(queue, **{"content-type": "application/x-python-serialize"}),
        outer(queue, **{"content-type": "application/nonsense"}),
        outer(queue, **{"content-type": None}),
        outer(queue, **{"content-encoding": "binary"}),
        outer(queue, **{"content-encoding": "nonsense"}),
    ]


def not_from_a_cell(queue: str) -> list[str]:
    """Return messages that the inbox must not accept."""
    forged = envelope.seal(b"x" * 32, cell="cell-1", incarnation="i", seq=1, body={"type": "x"})
    unknown_cell = envelope.seal(b"x" * 32, cell="unenrolled", incarnation="i", seq=1, body={})
    texts = ["", "garbage", "{}", "[]", '{"probe": "x"}', '{"probe": 99}', '{"probe"', DEEP]
    texts += [forged, unknown_cell, "\0", json.dumps({"v": 1, "cell": "cell-1", "seq": -1})]
    return [broker.plain_message(queue, text) for text in texts]


def not_orders(queue: str) -> list[str]:
    """Celery tasks that are none, or carry no order."""
    forged = envelope.seal(b"x" * 32, cell="cell-1", incarnation="i", seq=0, body={"type": "x"})
    arguments: list[list[object]] = [[], [1], [None], ["garbage"], [["x"]], [forged], ["a", "b"]]
    return [
        *(broker.task_message(queue, queues.ORDERS_TASK, words) for words in arguments),
        broker.task_message(queue, "no.such.task", []),
        broker.task_message(queue, "celery.backend_cleanup", ["x"]),
        broker.task_message(queue, queues.ORDERS_TASK, ["x"], expires="not an instant"),
        broker.task_message(queue, queues.ORDERS_TASK, ["x"], expires="2001-01-01T00:00:00Z"),
    ]


def pour(
    stack: RunningStack, lists: "redis.Redis[str]", contents: dict[str, list[str]], process: str
) -> None:
    """Push everything, and return when it is gone and the process is still the same."""
    pid = stack.pid_of(process)
    for queue, messages in contents.items():
        lists.lpush(queue, *messages)
    wait_until(
        lambda: not any(lists.llen(queue) for queue in contents),
        seconds=30,
        what=f"{process} has taken all of {', '.join(contents)}",
    )
    # Nor is any of it kept to be tried again.
    wait_until(lambda: not lists.exists("unacked"), seconds=10, what="all are acknowledged")
    assert stack.pid_of(process) == pid
    assert is_running(pid)


def check_work_goes_on(session: Session) -> None:
    """Check that a job runs as before."""
    job, _ = run_to_end(session, {"name": "after", "task_type": "process", "command": ["true"]})
    assert job["state"] == "SUCCEEDED"


def test_inbox_drops_malformed_messages(
    stack: RunningStack, session: Session, lists: "redis.Redis[str]"
) -> None:
    contents = {
        queue: [*not_messages(queue), *not_from_a_cell(queue)] for queue in queues.INBOX_QUEUES
    }
    pour(stack, lists, contents, "inbox")
    check_work_goes_on(session)


def test_cell_drops_malformed_orders(
    stack: RunningStack, session: Session, lists: "redis.Redis[str]"
) -> None:
    incarnation = session.cell("cell-1")["incarnation"]  # type: ignore[typeddict-item]
    queue = queues.cell_queue("cell-1", incarnation)
    pour(stack, lists, {queue: [*not_messages(queue), *not_orders(queue)]}, "cell-1")
    check_work_goes_on(session)


@pytest.mark.parametrize(
    ("process", "queue"),
    [
        ("placement", "placement"),
        ("convergence", "convergence"),
        ("inbox", "inbox.control"),
    ],
)
def test_control_plane_workers_drop_malformed_tasks(
    stack: RunningStack, session: Session, lists: "redis.Redis[str]", process: str, queue: str
) -> None:
    pour(stack, lists, {queue: [*not_messages(queue), *not_orders(queue)]}, process)
    check_work_goes_on(session)
