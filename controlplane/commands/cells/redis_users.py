"""Keep the ACL users of cells at Redis, if CELLRUN_REDIS_USERS is true."""

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from controlplane.contract.wire import logins
from controlplane.domain.cells.redis_users import acl_lines, redis_users
from controlplane.models import Cell
from controlplane.outbox.redis_users import drop_users, put_users
from controlplane.queries.cells.keys import keys_of


def put_users_of(name: str, *, disconnect: bool = False) -> None:
    """Write the users of a cell that is enrolled and not revoked. Raise RedisUsersFailed.

    `disconnect`: end the connections of its users, because one of its keys has ended.
    """
    if not settings.CELLRUN.redis_users:
        return
    # With the lock, so that no keys that end meanwhile are written after those that follow.
    with transaction.atomic():
        cell = _lock_cells().filter(name=name, revoked_at=None).first()
        if cell is not None:
            put_users(redis_users(cell.name, *keys_of(cell)), disconnect=disconnect)


def drop_users_of(name: str) -> None:
    """Delete the users of a revoked cell, and end their connections. Raise RedisUsersFailed."""
    if not settings.CELLRUN.redis_users:
        return
    # With the lock, so that the users of a cell that gets a new key meanwhile remain.
    with transaction.atomic():
        if _lock_cells().filter(name=name).exclude(revoked_at=None).first() is not None:
            drop_users([logins.receiver(name), logins.sender(name)])


def _lock_cells() -> QuerySet[Cell]:
    return Cell.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")


def _list_users() -> dict[str, tuple[str, ...]]:
    """Return the rules of the users of all cells that are not revoked."""
    found: dict[str, tuple[str, ...]] = {}
    for cell in Cell.objects.filter(revoked_at=None).order_by("name"):
        found |= redis_users(cell.name, *keys_of(cell))
    return found


def _list_revoked() -> list[str]:
    """Return the names of the users of revoked cells."""
    return [
        user
        for name in Cell.objects.exclude(revoked_at=None)
        .order_by("name")
        .values_list("name", flat=True)
        for user in (logins.receiver(name), logins.sender(name))
    ]


def list_commands() -> list[str]:
    """Return the commands for `redis-cli` that do what `put_all_users` does.

    The last one, which saves the users, fails at a Redis without an ACL file.
    """
    revoked = _list_revoked()
    deletion = [f"ACL DELUSER {' '.join(revoked)}"] if revoked else []
    return [*acl_lines(_list_users()), *deletion, "ACL SAVE"]


def put_all_users() -> int:
    """Write the users of all cells, delete those of revoked ones; return the number of cells.

    Raise RedisUsersFailed.
    """
    # With the locks, so that no cell whose key is revoked meanwhile gets its users back.
    with transaction.atomic():
        list(_lock_cells())
        users, revoked = _list_users(), _list_revoked()
        if users:
            put_users(users)
        if revoked:
            drop_users(revoked)
    return len(users) // 2
