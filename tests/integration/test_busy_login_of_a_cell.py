"""A login of a cell that keeps Redis busy with short commands: messages of other cells pass."""

import threading
from itertools import count
from pathlib import Path

import redis

from controlplane.contract.wire import logins, queues
from controlplane.inbox.guard import MAX_CONNECTIONS
from tests.harness.cell_logins import redis_with_cells

KEY = b"k" * 32


def test_short_commands_of_a_cell_without_a_pause_stop_no_message_of_another(
    tmp_path: Path,
) -> None:
    over = threading.Event()

    def ping(address: str) -> None:
        with redis.Redis.from_url(address) as client, client.pipeline(transaction=False) as many:
            while not over.is_set():
                for _ in range(500):
                    many.ping()
                many.execute()

    with redis_with_cells(tmp_path, ["busy", "other"], KEY) as url:
        address = logins.with_login(url, logins.receiver("busy"), KEY)
        threads = [threading.Thread(target=ping, args=(address,)) for _ in range(MAX_CONNECTIONS)]
        sender = redis.Redis.from_url(logins.with_login(url, logins.sender("other"), KEY))
        shard = queues.inbox_queue("other")
        with sender, redis.Redis.from_url(url) as operator:
            before = operator.info()["total_commands_processed"]
            for thread in threads:
                thread.start()
            try:
                for number in count():
                    message = str(number).encode()
                    sender.lpush(shard, message)
                    assert operator.rpop(shard) == message
                    processed = operator.info()["total_commands_processed"] - before
                    if number >= 50 and processed > 20_000:
                        break
            finally:
                over.set()
                for thread in threads:
                    thread.join()
