"""Both keys of a rotation open the logins of a cell at Redis, and the old one none after it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError, connections, transaction

from controlplane import clock
from controlplane.commands.cells import redis_users
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.commands.cells.rotation import (
    complete_rotation,
    end_overdue_rotations,
    rotate_key,
)
from controlplane.contract.wire import keys, logins
from controlplane.domain.cells.keys import CellAddress
from controlplane.models import Cell, Pool
from tests.integration.api.conftest import change_setting
from tests.integration.test_redis_users import client_of, operator, url

__all__ = ["operator", "url"]

pytestmark = pytest.mark.django_db

NAME = "cell-r"
USERS = (logins.receiver(NAME), logins.sender(NAME))


@pytest.fixture
def present(settings: Any, url: str, operator: "redis.Redis[bytes]") -> Iterator[bytes]:
    """The key of a cell that has its logins at Redis."""
    Pool.objects.create(name="default")
    change_setting(settings, redis_users=True)
    settings.CELERY_BROKER_URL = url
    yield keys.decode_key(enroll_cell(name=NAME, actor="test", now=clock.now()))
    operator.acl_deluser(*USERS)


@pytest.fixture
def following(present: bytes) -> bytes:
    """The next key of the same cell."""
    now = clock.now()
    text, _ = rotate_key(name=NAME, until=now + timedelta(days=1), actor="test", now=now)
    return keys.decode_key(text)


def opened(url: str, key: bytes) -> list[bool]:
    """Return whether the key opens each of the logins."""
    found = []
    for user in USERS:
        with client_of(url, user, key) as client:
            try:
                found.append(bool(client.ping()))
            except redis.AuthenticationError:
                found.append(False)
    return found


def test_both_keys_open_the_logins_during_a_rotation(
    url: str, present: bytes, following: bytes
) -> None:
    assert opened(url, present) == [True, True]
    assert opened(url, following) == [True, True]


def test_connection_of_a_running_cell_survives_the_begin_of_a_rotation(
    url: str, present: bytes
) -> None:
    client = redis.Redis.from_url(
        logins.with_login(url, USERS[0], present), single_connection_client=True
    )
    with client:
        assert client.ping()
        port = client.connection._sock.getsockname()[1]
        now = clock.now()
        rotate_key(name=NAME, until=now, actor="test", now=now)
        assert client.ping()
        assert client.connection._sock.getsockname()[1] == port


def test_old_key_opens_no_login_after_the_switch_and_its_connections_end(
    url: str, present: bytes, following: bytes, operator: "redis.Redis[bytes]"
) -> None:
    thief = client_of(url, USERS[0], present)
    assert thief.ping()
    address = CellAddress(Cell.objects.get().pk, NAME, "one", following)
    complete_rotation(address, now=clock.now())
    assert {client["user"] for client in operator.client_list()}.isdisjoint(USERS)
    with pytest.raises(redis.AuthenticationError):
        thief.ping()
    thief.close()
    assert opened(url, present) == [False, False]
    assert opened(url, following) == [True, True]


@pytest.fixture
def refused(present: bytes, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each writing of logins, whether it holds the lock of the cell."""
    found: list[bool] = []

    def is_locked() -> bool:
        try:
            with transaction.atomic():
                Cell.objects.select_for_update(nowait=True).get(name=NAME)
        except OperationalError:
            return True
        finally:
            connections.close_all()
        return False

    def put_later(*_: object, **__: object) -> None:
        with ThreadPoolExecutor(1) as thread:
            found.append(thread.submit(is_locked).result(timeout=60))

    monkeypatch.setattr(redis_users, "put_users", put_later)
    return found


@pytest.mark.django_db(transaction=True)
def test_logins_are_written_under_the_lock_of_the_cell(refused: list[bool]) -> None:
    """So that no key which ends meanwhile gets its login back."""
    enroll_cell(name=NAME, actor="test", now=clock.now())
    assert refused == [True]


@pytest.mark.django_db(transaction=True)
def test_logins_of_all_cells_are_written_under_their_locks(refused: list[bool]) -> None:
    """So that no cell which is revoked meanwhile gets its login back."""
    redis_users.put_all_users()
    assert refused == [True]


def test_late_end_of_a_revocation_keeps_the_login_of_a_renewed_key(
    url: str, present: bytes
) -> None:
    """The logins end after the revocation is committed, and a renewal may come between."""
    revoke_cell(name=NAME, actor="test", now=clock.now())
    renewed = enroll_cell(name=NAME, renew=True, actor="test", now=clock.now())
    redis_users.drop_users_of(NAME)
    assert opened(url, keys.decode_key(renewed)) == [True, True]


def test_discarded_key_opens_no_login(url: str, present: bytes, following: bytes) -> None:
    assert end_overdue_rotations(now=clock.now()) == 0
    assert end_overdue_rotations(now=clock.now() + timedelta(days=2)) == 1
    assert opened(url, following) == [False, False]
    assert opened(url, present) == [True, True]


@pytest.mark.parametrize("ending", ["revoke", "renew"])
def test_revocation_and_renewal_end_the_logins_of_both_keys(
    url: str, present: bytes, following: bytes, ending: str
) -> None:
    if ending == "revoke":
        revoke_cell(name=NAME, actor="test", now=clock.now())
    else:
        enroll_cell(name=NAME, renew=True, actor="test", now=clock.now())
    assert opened(url, present) == opened(url, following) == [False, False]
