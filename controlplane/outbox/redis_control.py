"""Measure what cells use of Redis, and limit it: lists, connections, logins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

_TIMEOUT_SECONDS = 5.0
_EVERY_NODE = 0
"""Redis measures every node of a list: a sender could make a sample of the newest look small."""


@dataclass(frozen=True, slots=True)
class ListSize:
    """The length of a list and the memory that it uses."""

    messages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The sizes of lists by name, the connections, and the memory of all else, also of them."""

    lists: Mapping[str, ListSize]
    connections: int
    max_connections: int
    other_bytes: int


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to Redis. `command`: its last one, NULL before the first.

    `arguments_bytes`: of the command that it sends, or for whose response it waits.
    """

    id: int
    user: str
    command: str
    age_seconds: int
    arguments_bytes: int


class RedisControl:
    """Controls Redis with the login of the control plane. Each method raises redis.RedisError."""

    def __init__(self, url: str | None = None) -> None:
        self._client: Any = redis.Redis.from_url(
            url or settings.CELERY_BROKER_URL,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            decode_responses=True,
        )

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def acquire(self, key: str, owner: str, *, seconds: int) -> bool:
        """Return whether `owner` holds the lease `key`, which is renewed if it does.

        A Redis without free memory refuses new leases: then every caller holds it.
        """
        try:
            if self._client.set(key, owner, nx=True, ex=seconds):
                return True
        except redis.exceptions.OutOfMemoryError:
            return True
        return self._client.get(key) == owner and self.renew(key, owner, seconds=seconds)

    def renew(self, key: str, owner: str, *, seconds: int) -> bool:
        """Return whether `owner` still holds the lease `key`, which is renewed.

        Only a caller that held it may do so: another renewal would keep the lease of a dead owner.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.get(key)
            pipeline.expire(key, seconds)
            holder, is_renewed = pipeline.execute()
        return holder == owner and bool(is_renewed)

    def release(self, key: str, owner: str) -> None:
        """End the lease `key` if `owner` holds it."""
        if self._client.get(key) == owner:
            self._client.delete(key)

    def measure(self, names: Sequence[str]) -> ServerLoad:
        """Return the load of the server and the sizes of lists."""
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.info("clients")
            pipeline.info("memory")
            for name in names:
                pipeline.llen(name)
                pipeline.memory_usage(name, samples=_EVERY_NODE)
            clients, memory, *sizes = pipeline.execute()
        lists = {
            name: ListSize(sizes[2 * n], sizes[2 * n + 1] or 0) for n, name in enumerate(names)
        }
        listed_bytes = sum(size.size_bytes for size in lists.values())
        return ServerLoad(
            lists,
            connections=clients["connected_clients"],
            max_connections=clients["maxclients"],
            other_bytes=memory["used_memory"] - memory["used_memory_startup"] - listed_bytes,
        )

    def keep_oldest(self, name: str, messages: int) -> None:
        """Delete the newest messages of a list, which senders add on its left."""
        self._client.ltrim(name, -messages, -1)

    def connections(self) -> list[Connection]:
        """Return all connections."""
        return [
            Connection(
                int(found["id"]),
                found.get("user", ""),
                found["cmd"],
                int(found["age"]),
                int(found.get("argv-mem", 0)),
            )
            for found in self._client.client_list()
        ]

    def users(self, prefix: str) -> dict[str, bool]:
        """Return the users whose names begin with `prefix`, and whether each may log in."""
        lines = (line.split(" ", 3) for line in self._client.acl_list())
        return {name: state == "on" for _, name, state, *_ in lines if name.startswith(prefix)}

    def open_logins(self, users: Iterable[str]) -> None:
        """Let users log in, if they still exist."""
        self._set(self._existing(users), "on")

    def close_logins(self, users: Iterable[str]) -> None:
        """Refuse users at their next login, and end their connections."""
        existing = self._existing(users)
        self._set(existing, "off")
        self.end_connections(existing)

    def own_user(self) -> str:
        """Return the user of the login of the control plane."""
        return str(self._client.acl_whoami())

    def end_connections(self, users: Iterable[str]) -> None:
        """End all connections of users; skip users that are deleted meanwhile."""
        self._run((("CLIENT", "KILL", "USER", user) for user in users), may_fail=True)

    def free_memory_of(self, users: Iterable[str]) -> dict[str, int]:
        """End all connections of each user in turn, and return how many bytes that freed."""
        names = list(users)
        commands: list[tuple[str, ...]] = [("INFO", "memory")]
        for name in names:
            commands += [("CLIENT", "KILL", "USER", name), ("INFO", "memory")]
        try:
            # In a transaction: what others use or free meanwhile is not of these users.
            responses = self._responses(commands, transaction=True)
        except redis.exceptions.OutOfMemoryError:
            # Without free memory, Redis refuses transactions. Others cannot add messages, either.
            responses = self._responses(commands, transaction=False)
        used = [facts["used_memory"] for facts in responses[::2]]
        return {name: used[n] - used[n + 1] for n, name in enumerate(names)}

    def _responses(self, commands: Iterable[tuple[str, ...]], *, transaction: bool) -> list[Any]:
        with self._client.pipeline(transaction=transaction) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            # A user that is deleted meanwhile is an error.
            return list(pipeline.execute(raise_on_error=False))

    def end_connections_by_id(self, numbers: Iterable[int]) -> None:
        """End connections by their ids; skip those that have ended."""
        self._run((("CLIENT", "KILL", "ID", number) for number in numbers), may_fail=True)

    def _existing(self, users: Iterable[str]) -> list[str]:
        """Omit deleted users, which a change would create again."""
        return sorted(set(self._client.acl_users()).intersection(users))

    def _set(self, users: Iterable[str], state: str) -> None:
        self._run(("ACL", "SETUSER", user, state) for user in users)

    def _run(self, commands: Iterable[tuple[Any, ...]], *, may_fail: bool = False) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.execute(raise_on_error=not may_fail)
