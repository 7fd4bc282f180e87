"""Write and delete the ACL users of cells at Redis."""

from collections.abc import Iterable, Mapping, Sequence

import redis
from django.conf import settings

from controlplane.domain.errors import CellrunError

_TIMEOUT_SECONDS = 5.0


class RedisUsersFailed(CellrunError):
    """Redis did not accept a change of its users, or cannot be reached."""


def put_users(users: Mapping[str, Sequence[str]], *, disconnect: bool = False) -> None:
    """Write the rules of users; `disconnect`: also end their connections. Raise RedisUsersFailed.

    A connection continues with the rules of its user, but Redis does not check a password again.
    """
    commands: list[tuple[str, ...]] = []
    if disconnect:
        commands.append(("ACL", "DELUSER", *users))
    commands += [("ACL", "SETUSER", user, *rules) for user, rules in users.items()]
    _execute(commands)


def drop_users(users: Iterable[str]) -> None:
    """Delete users and end their connections. Raise RedisUsersFailed."""
    _execute([("ACL", "DELUSER", *users)])


def _execute(commands: Sequence[tuple[str, ...]]) -> None:
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
    )
    try:
        with client, client.pipeline(transaction=True) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.execute()
            _save(client)
    except redis.RedisError as error:
        raise RedisUsersFailed(f"the users of Redis are not changed: {error}") from error


def _save(client: redis.Redis) -> None:
    """Write the users to the server's file, from which it reads them when it restarts."""
    try:
        client.execute_command("ACL", "SAVE")
    except redis.ResponseError as error:
        if "not configured to use an ACL file" not in str(error):
            raise
