"""Cells of the stack use logins of their own at Redis, which end with a revocation."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import redis

from cellrun import Session
from cellrun.documents import Task
from cellrun.states import TERMINAL_STATES
from controlplane.contract.wire import keys, logins, queues
from tests.architecture.source import ROOT
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import run_to_end, session_of
from workers.control_api import ControlPlaneUnavailable, Web

pytestmark = [pytest.mark.stack]

JOB = {"name": "x", "task_type": "process", "command": ["true"]}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        # A lease in which a cell restarts also on a busy machine.
        lease = {"CELLRUN_LEASE_SECONDS": "120"}
        with RunningStack(folder / "home", cells=2, engine="process", **lease) as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture
def operator(stack: RunningStack) -> Iterator["redis.Redis[str]"]:
    url = stack.environment["CELERY_BROKER_URL"]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


def users_of(name: str) -> set[str]:
    return {logins.receiver(name), logins.sender(name)}


def connected(operator: "redis.Redis[str]") -> set[str]:
    return {client["user"] for client in operator.client_list()}


def await_both_cells(operator: "redis.Redis[str]") -> None:
    users = users_of("cell-1") | users_of("cell-2")
    wait_until(lambda: users <= connected(operator), seconds=30, what="both cells are connected")


def manage(stack: RunningStack, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "CELLRUN_HOME": str(stack.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cell_works_with_its_own_logins_and_needs_no_more(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    password = stack.environment["CELERY_BROKER_URL"].split(":")[2].split("@")[0]
    assert password not in str(stack.environment_of("cell-1"))
    operator.config_set("acllog-max-len", 128)
    # New connections, whose first commands are logged if they are denied.
    operator.client_kill_filter(_type="normal")
    assert run_to_end(session, JOB)[0]["state"] == "SUCCEEDED"
    await_both_cells(operator)
    # The client library describes itself with CLIENT, and tolerates the refusal.
    refused = {(item["username"], item["object"]) for item in operator.acl_log()}
    assert {entry for entry in refused if entry[1] != "client"} == set()


def test_logins_survive_a_restart_of_redis(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    stack.kill_and_await("redis")
    assert run_to_end(session, JOB)[0]["state"] == "SUCCEEDED"
    await_both_cells(operator)


def test_login_ends_with_the_revocation_and_returns_with_a_new_key(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    manage(stack, "revoke_cell", "cell-2")
    assert not users_of("cell-2") & set(operator.acl_users())
    assert not users_of("cell-2") & connected(operator)
    key = manage(stack, "enroll_cell", "cell-2", "--renew")
    (stack.home / "cells" / "cell-2" / "key").write_text(key + "\n")
    stack.kill_and_await("cell-2")
    wait_until(
        lambda: session.cell("cell-2")["state"] == "READY", seconds=60, what="cell-2 is READY"
    )
    # Its first process had another incarnation, and restarts.
    wait_until(
        lambda: users_of("cell-2") <= connected(operator), seconds=30, what="cell-2 is connected"
    )


def test_lost_users_are_written_again(stack: RunningStack, operator: "redis.Redis[str]") -> None:
    users = users_of("cell-1") | users_of("cell-2")
    operator.acl_deluser(*users)
    assert manage(stack, "redis_users") == "Redis has the users of 2 cells"
    assert users <= set(operator.acl_users())
    await_both_cells(operator)


def only_task(session: Session, job_id: int) -> Task:
    [task] = session.tasks(job_id)
    return task


def test_attempt_continues_when_its_cell_restarts_with_a_new_key_within_its_lease(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    end = stack.home / "end-of-the-job"
    script = 'until test -e "$1"; do sleep 0.1; done'
    job_id = session.submit({**JOB, "command": ["sh", "-c", script, "sh", str(end)]})["id"]
    wait_until(
        lambda: only_task(session, job_id)["state"] == "RUNNING", seconds=60, what="the task runs"
    )
    before = only_task(session, job_id)
    name = str(before["cell_id"])
    key_file = stack.home / "cells" / name / "key"
    old = key_file.read_text()
    key_file.write_text(manage(stack, "enroll_cell", name, "--renew") + "\n")
    assert key_file.read_text() != old
    stack.kill_and_await(name)
    wait_until(
        lambda: users_of(name) <= connected(operator), seconds=30, what="the cell is connected"
    )
    end.touch()
    wait_until(
        lambda: only_task(session, job_id)["state"] in TERMINAL_STATES, seconds=60, what="its end"
    )
    after = only_task(session, job_id)
    assert (after["state"], after["attempt_uid"]) == ("SUCCEEDED", before["attempt_uid"])
    assert session.cell(name)["state"] == "READY"


def log_in(stack: RunningStack, name: str, key: str) -> bool:
    """Return True; raise AuthenticationError, or ConnectionError if the switch comes between."""
    url = stack.environment["CELERY_BROKER_URL"]
    login = logins.with_login(url, logins.receiver(name), keys.decode_key(key))
    with redis.Redis.from_url(login) as client:
        return bool(client.ping())


def is_refused(stack: RunningStack, name: str, key: str) -> bool:
    try:
        return not log_in(stack, name, key)
    except redis.AuthenticationError:
        return True
    except redis.ConnectionError:
        return False


def test_attempt_runs_through_a_rotation_of_the_key_of_its_cell(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    """The test only writes the next key into the file; the cell takes it while it runs."""
    end = stack.home / "end-after-the-rotation"
    script = 'until test -e "$1"; do sleep 0.1; done'
    job_id = session.submit({**JOB, "command": ["sh", "-c", script, "sh", str(end)]})["id"]
    wait_until(
        lambda: only_task(session, job_id)["state"] == "RUNNING", seconds=60, what="the task runs"
    )
    before = only_task(session, job_id)
    name = str(before["cell_id"])
    key_file = stack.home / "cells" / name / "key"
    old, following = key_file.read_text(), manage(stack, "enroll_cell", name, "--rotate")
    assert log_in(stack, name, old)
    assert log_in(stack, name, following)
    key_file.write_text(following + "\n")
    wait_until(lambda: is_refused(stack, name, old), seconds=60, what="the old key opens no login")
    assert log_in(stack, name, following)
    web = Web(control_url=stack.environment["CELLRUN_URL"], cell=name, key=keys.decode_key(old))
    with pytest.raises(ControlPlaneUnavailable, match="status 401"):
        web.check_key()
    web.close()
    (other,) = {"cell-1", "cell-2"} - {name}
    session.cordon(other)
    assert run_to_end(session, JOB)[0]["state"] == "SUCCEEDED"  # only this cell takes work
    session.uncordon(other)
    end.touch()
    wait_until(
        lambda: only_task(session, job_id)["state"] in TERMINAL_STATES, seconds=60, what="its end"
    )
    after = only_task(session, job_id)
    assert (after["state"], after["attempt_uid"]) == ("SUCCEEDED", before["attempt_uid"])
    assert users_of(name) <= connected(operator)


class Flooder:
    """Fills the shard of a cell with garbage, with the login of the cell, until it is stopped."""

    def __init__(self, stack: RunningStack, name: str) -> None:
        key = keys.decode_key((stack.home / "cells" / name / "key").read_text().strip())
        url = stack.environment["CELERY_BROKER_URL"]
        self._url = logins.with_login(url, logins.sender(name), key)
        self._shard = queues.inbox_queue(name)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Flooder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            while not self._stopped.is_set():
                try:
                    client.lpush(self._shard, *[b"x" * (1 << 20)] * 20)
                except (redis.ConnectionError, redis.ResponseError):
                    self._stopped.wait(0.1)


def test_login_that_floods_redis_is_closed_while_cells_of_other_shards_work(
    stack: RunningStack, session: Session, operator: "redis.Redis[str]"
) -> None:
    """The garbage names no cell. The flooding cell works again once its login is open."""
    largest = 0
    jobs = []

    def is_closed() -> bool:
        nonlocal largest
        largest = max(largest, operator.info("memory")["used_memory"])
        jobs.append(run_to_end(session, JOB)[0]["state"])
        return "closed" in session.cell("cell-2")["state_reason"]

    session.cordon("cell-2")  # so that the jobs run on the other cell
    with Flooder(stack, "cell-2"):
        wait_until(is_closed, seconds=120, what="the login of cell-2 is closed")
        assert session.cell("cell-2")["state"] == "QUARANTINED"
        assert logins.sender("cell-2") not in connected(operator)
    assert set(jobs) == {"SUCCEEDED"}
    assert session.cell("cell-1")["state"] == "READY"
    assert largest < 1 << 30
    for user in users_of("cell-2"):
        operator.execute_command("ACL", "SETUSER", user, "on")
    session.unquarantine("cell-2")
    session.uncordon("cell-2")
    session.cordon("cell-1")
    assert run_to_end(session, JOB)[0]["state"] == "SUCCEEDED"
    session.uncordon("cell-1")
