"""`manage.py redis_users` writes the users of all cells into Redis, or prints the commands."""

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.config.stack.parts import redis as server
from controlplane.contract.wire import keys, logins
from controlplane.models import AuditLine, Pool
from tests.integration.api.conftest import change_setting
from tests.integration.test_redis_users import operator, url

__all__ = ["operator", "url"]

pytestmark = pytest.mark.django_db

CELLS = ("cell-a", "cell-b", "cell-lost")
REVOKED = "cell-revoked"
Users = set[str]


@pytest.fixture(autouse=True)
def cell_keys(settings: Any, url: str) -> dict[str, str]:
    """The keys of four cells, one of which is revoked; Redis has none of their users."""
    Pool.objects.create(name="default")
    change_setting(settings, redis_users=False)
    settings.CELERY_BROKER_URL = url
    found = {
        name: enroll_cell(name=name, actor="test", now=clock.now()) for name in (*CELLS, REVOKED)
    }
    revoke_cell(name=REVOKED, actor="test", now=clock.now())
    return found


@pytest.fixture(autouse=True)
def users_of_before(operator: "redis.Redis[bytes]") -> Iterator[Users]:
    """Users that Redis had: stale ones of a cell and of the revoked one, and one of others."""
    reset(operator)
    yield users(operator)
    operator.acl_deluser(*(set(operator.acl_users()) - {"default", server.OPERATOR}))


def reset(operator: "redis.Redis[bytes]") -> None:
    operator.acl_deluser("none", *(set(operator.acl_users()) - {"default", server.OPERATOR}))
    for name in (logins.receiver("cell-a"), logins.sender(REVOKED), "of-others"):
        operator.execute_command("ACL", "SETUSER", name, "on", "nopass", "~*", "+@all")
    operator.execute_command("ACL", "SAVE")


def users(operator: "redis.Redis[bytes]") -> Users:
    return set(map(str, operator.acl_list()))


def saved(operator: "redis.Redis[bytes]") -> Users:
    """The users that Redis has after a restart."""
    folder = Path(operator.config_get("dir")["dir"])
    return set((folder / server.USERS).read_text().splitlines())


def printed() -> str:
    text = io.StringIO()
    call_command("redis_users", "--print", stdout=text)
    return text.getvalue()


def redis_cli(url: str, commands: str) -> str:
    beside = Path(server.binary()).with_name("redis-cli")
    program = str(beside) if beside.exists() else shutil.which("redis-cli")
    assert program, "redis-cli is part of Redis"
    address = urlsplit(url)
    done = subprocess.run(
        [program, "-p", str(address.port), "--user", str(address.username)],
        input=commands,
        env={"PATH": os.environ["PATH"], "REDISCLI_AUTH": str(address.password)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_printed_commands_give_the_users_that_the_command_writes(
    url: str, operator: "redis.Redis[bytes]"
) -> None:
    call_command("redis_users", stdout=io.StringIO())
    expected = users(operator)
    names = {name for cell in CELLS for name in (logins.receiver(cell), logins.sender(cell))}
    assert set(operator.acl_users()) == {"default", server.OPERATOR, "of-others", *names}
    reset(operator)
    answers = redis_cli(url, printed())
    assert "ERR" not in answers
    assert users(operator) == expected
    assert saved(operator) == expected


def test_printing_changes_nothing(operator: "redis.Redis[bytes]", users_of_before: Users) -> None:
    lines = AuditLine.objects.count()
    with CaptureQueriesContext(connection) as queries:
        text = printed()
    assert text
    assert [query["sql"] for query in queries if not query["sql"].startswith("SELECT")] == []
    assert AuditLine.objects.count() == lines
    assert users(operator) == users_of_before


def test_printing_needs_no_redis(settings: Any) -> None:
    with_redis = printed()
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    assert printed() == with_redis


def test_printed_commands_contain_no_secret(
    settings: Any, url: str, cell_keys: dict[str, str]
) -> None:
    text = printed()
    secrets = [settings.CELLRUN.secret_key, str(urlsplit(url).password)]
    for name in (*CELLS, REVOKED):
        assert logins.receiver(name) in text
        key = keys.decode_key(cell_keys[name])
        secrets += [cell_keys[name], key.hex(), logins.password(key)]
    assert [secret for secret in secrets if secret in text] == []
