"""A Redis of a test's own, with the logins of cells."""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from controlplane.config.stack.parts import ports
from controlplane.config.stack.parts import redis as server
from controlplane.domain.cells.redis_users import redis_users

PASSWORD = "of-the-operator"


@contextmanager
def redis_with_cells(folder: Path, names: Iterable[str], key: bytes) -> Iterator[str]:
    """Run a Redis with the users of cells, all with one key; yield the operator's address."""
    port = ports.free_port(taken=set())
    server.write_password(folder, PASSWORD)
    with subprocess.Popen(server.server_command(port=port, folder=folder)) as process:
        try:
            server.wait_until_ready(port=port, deadline_seconds=30)
            address = server.broker_url(port=port, password=PASSWORD)
            with redis.Redis.from_url(address) as operator:
                for name in names:
                    for user, rules in redis_users(name, key).items():
                        operator.execute_command("ACL", "SETUSER", user, *rules)
            yield address
        finally:
            process.terminate()
