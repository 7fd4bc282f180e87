"""The ACL users of a cell at Redis, which reach its own queue and its shard of the inbox only."""

import hashlib

from controlplane.contract.wire import logins
from controlplane.contract.wire.queues import cell_queue, inbox_queue

_CONNECTION = ("+ping",)
"""Commands of a client when it connects, besides AUTH.

Without SELECT: in another database of Redis, a cell could fill lists that are not limited.
A client tolerates that it may not set its name with CLIENT. Not all versions know each of its
subcommands, and Redis 7 refuses rules with an unknown one.
"""

_INCARNATION = "?" * 32
"""The pattern of an incarnation: with `*` a cell `a` could read the queue of a cell `a.b`."""


def redis_users(name: str, *keys: bytes) -> dict[str, tuple[str, ...]]:
    """Return the rules of the users of a cell, as for ACL SETUSER. They contain no password.

    Each of the valid `keys` opens them.
    The receiver takes orders from the queues of its incarnations, and publishes Celery's events.
    The sender adds messages to the inbox: it can neither read nor delete them.
    """
    digests = [f"#{hashlib.sha256(logins.password(key).encode()).hexdigest()}" for key in keys]
    base = ("reset", "on", *digests, "resetchannels", *_CONNECTION)
    own_queues = cell_queue(name, _INCARNATION)
    receive = (f"~{own_queues}", "+brpop", "+llen", "&/*.celeryev/*", "+publish")
    return {
        logins.receiver(name): (*base, *receive),
        logins.sender(name): (*base, f"~{inbox_queue(name)}", "+lpush"),
    }


def acl_lines(users: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the commands that create the users, for `redis-cli`."""
    return [f"ACL SETUSER {user} {' '.join(rules)}" for user, rules in users.items()]
