"""What the logins of a cell at a real Redis permit: each other command and key is refused."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from controlplane.config.stack.parts import redis as server
from controlplane.contract.wire import broker, logins, queues
from controlplane.domain.cells.redis_users import redis_users
from tests.harness.cell_logins import redis_with_cells

NAME, KEY = "cell-1", b"k" * 32
INCARNATION = "0123456789abcdef" * 2
OWN_QUEUE = queues.cell_queue(NAME, INCARNATION)
OWN_SHARD = queues.inbox_queue(NAME)
FOREIGN_KEYS = [
    queues.cell_queue("cell-2", INCARNATION),
    # The queue of a cell whose name begins like this one.
    queues.cell_queue(f"{NAME}.b", INCARNATION),
    "placement",
    "convergence",
    "callbacks",
    "unacked",
    "unacked_index",
    "_kombu.binding.celeryev",
    "_kombu.binding.inbox.0",
    "cellrun:wake:placement",
    "*",
    *(shard for shard in queues.INBOX_QUEUES if shard != OWN_SHARD),
]
CONNECTION = {"ping", "auth", "hello"}
PERMITTED = {
    logins.receiver(NAME): CONNECTION | {"brpop", "llen", "publish"},
    logins.sender(NAME): CONNECTION | {"lpush"},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis of its own, with the users of two cells."""
    folder = tmp_path_factory.mktemp("redis")
    with redis_with_cells(folder, (NAME, "cell-2"), KEY) as address:
        yield address


@pytest.fixture
def operator(url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(url) as client:
        yield client


def client_of(url: str, user: str, key: bytes = KEY) -> "redis.Redis[bytes]":
    return redis.Redis.from_url(logins.with_login(url, user, key))


def test_receiver_takes_its_orders_and_publishes_events(
    url: str, operator: "redis.Redis[bytes]"
) -> None:
    operator.lpush(OWN_QUEUE, "order")
    with client_of(url, logins.receiver(NAME)) as client:
        assert client.llen(OWN_QUEUE) == 1
        assert client.brpop([OWN_QUEUE], 1) == (OWN_QUEUE.encode(), b"order")
        assert client.publish("/0.celeryev/worker.heartbeat", "x") == 0


def test_sender_adds_to_the_shard_of_its_cell(url: str, operator: "redis.Redis[bytes]") -> None:
    with client_of(url, logins.sender(NAME)) as client:
        assert client.lpush(OWN_SHARD, "message") == 1
    assert operator.rpop(OWN_SHARD) == b"message"


@pytest.mark.parametrize("user", PERMITTED)
def test_no_other_command_is_permitted(url: str, operator: "redis.Redis[bytes]", user: str) -> None:
    """The arguments are well-formed in number, so that only the permission is missing."""
    arities = {name: facts["arity"] for name, facts in operator.command().items()}
    assert {"flushall", "config", "keys", "scan", "subscribe", "rpop", "eval", "monitor"} <= set(
        arities
    )
    permitted = []
    for name, arity in arities.items():
        with client_of(url, user) as client:
            try:
                client.execute_command(name, *["x"] * (abs(arity) - 1))
            except NoPermissionError:
                continue
            except redis.RedisError as error:
                if "permission" in str(error):
                    continue
            permitted.append(name)
    assert set(permitted) <= PERMITTED[user] | {"quit", "reset"}


@pytest.mark.parametrize(
    "command",
    ["LIST", "KILL 127.0.0.1:1", "PAUSE 1", "NO-EVICT on", "TRACKING on", "UNBLOCK 1", "INFO"],
)
@pytest.mark.parametrize("user", PERMITTED)
def test_no_other_subcommand_of_client_is_permitted(url: str, user: str, command: str) -> None:
    with client_of(url, user) as client, pytest.raises(redis.ResponseError, match="permission"):
        client.execute_command("CLIENT", *command.split())


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_no_key_of_others_can_be_reached(url: str, key: str) -> None:
    with client_of(url, logins.receiver(NAME)) as client:
        with pytest.raises(NoPermissionError):
            client.llen(key)
        with pytest.raises(NoPermissionError):
            client.brpop([key], 1)
        with pytest.raises(NoPermissionError):
            client.brpop([OWN_QUEUE, key], 1)
    with client_of(url, logins.sender(NAME)) as client, pytest.raises(NoPermissionError):
        client.lpush(key, "x")


@pytest.mark.parametrize("user", PERMITTED)
def test_no_other_database_can_be_reached(url: str, user: str) -> None:
    """A list there would fill the memory, and is neither read nor limited."""
    with client_of(url, user) as client, pytest.raises(NoPermissionError):
        client.select(1)


def test_messages_of_the_inbox_can_be_neither_read_nor_taken(
    url: str, operator: "redis.Redis[bytes]"
) -> None:
    operator.lpush(OWN_SHARD, "of another cell")
    for user in PERMITTED:
        with client_of(url, user) as client:
            for command in ("LLEN", "BRPOP"):
                timeout = ["1"] if command == "BRPOP" else []
                with pytest.raises(NoPermissionError):
                    client.execute_command(command, OWN_SHARD, *timeout)
    assert operator.rpop(OWN_SHARD) == b"of another cell"


def test_value_longer_than_a_message_is_refused(url: str, operator: "redis.Redis[bytes]") -> None:
    """The inbox and Flower would have to read all of it before they could drop it."""
    longest, too_long = b"x" * broker.MAX_ENTRY_BYTES, b"x" * (2 * broker.MAX_ENTRY_BYTES)
    for queue, user in ((OWN_SHARD, "sender"), ("/0.celeryev/x", "receiver")):
        with client_of(url, getattr(logins, user)(NAME)) as client:
            send = client.lpush if user == "sender" else client.publish
            send(queue, longest)
            with pytest.raises(redis.RedisError, match=r"bulk length|reset|Broken pipe|closed"):
                send(queue, too_long)
    assert operator.rpop(OWN_SHARD) == longest
    assert operator.llen(OWN_SHARD) == 0


def test_no_order_can_be_added_to_a_queue_of_a_cell(url: str) -> None:
    for user in PERMITTED:
        with client_of(url, user) as client, pytest.raises(NoPermissionError):
            client.lpush(OWN_QUEUE, "order")


@pytest.mark.parametrize(
    "channel", ["x", "/0.celery.pidbox", "/0.reply.celery.pidbox", "__keyspace"]
)
def test_no_channel_but_that_of_events_can_be_used(url: str, channel: str) -> None:
    with client_of(url, logins.receiver(NAME)) as client, pytest.raises(NoPermissionError):
        client.publish(channel, "x")


def test_password_follows_from_the_key_of_the_cell(url: str) -> None:
    with (
        client_of(url, logins.receiver(NAME), key=b"o" * 32) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_rules_and_saved_users_contain_no_password(
    operator: "redis.Redis[bytes]",
) -> None:
    operator.execute_command("ACL", "SAVE")
    folder = Path(operator.config_get("dir")["dir"])
    for text in (str(redis_users(NAME, KEY)), (folder / server.USERS).read_text()):
        assert logins.receiver(NAME) in text
        assert logins.password(KEY) not in text
        with suppress(UnicodeDecodeError):
            assert KEY.decode() not in text
