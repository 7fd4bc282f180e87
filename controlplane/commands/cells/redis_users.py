"""Keep the ACL users of cells at Redis, if CELLRUN_REDIS_USERS is true."""

from django.conf import settings

from controlplane.contract.wire import logins
from controlplane.domain.cells.redis_users import redis_users
from controlplane.models import Cell
from controlplane.outbox.redis_users import drop_users, put_users
from controlplane.queries.cells.keys import key_of


def put_users_of(name: str, *, disconnect: bool = False) -> None:
    """Write the users of a cell that is enrolled and not revoked. Raise RedisUsersFailed.

    `disconnect`: end the connections of its users, because its key is new.
    """
    cell = Cell.objects.filter(name=name, revoked_at=None).first()
    if settings.CELLRUN.redis_users and cell is not None:
        put_users(redis_users(cell.name, key_of(cell)), disconnect=disconnect)


def drop_users_of(name: str) -> None:
    """Delete the users of a cell, and end their connections. Raise RedisUsersFailed."""
    if settings.CELLRUN.redis_users:
        drop_users([logins.receiver(name), logins.sender(name)])


def list_users() -> dict[str, tuple[str, ...]]:
    """Return the rules of the users of all cells that are not revoked."""
    found: dict[str, tuple[str, ...]] = {}
    for cell in Cell.objects.filter(revoked_at=None).order_by("name"):
        found |= redis_users(cell.name, key_of(cell))
    return found


def put_all_users() -> int:
    """Write the users of all cells, delete those of revoked ones; return the number of cells.

    Raise RedisUsersFailed.
    """
    users = list_users()
    if users:
        put_users(users)
    for cell in Cell.objects.exclude(revoked_at=None).order_by("name"):
        drop_users([logins.receiver(cell.name), logins.sender(cell.name)])
    return len(users) // 2
