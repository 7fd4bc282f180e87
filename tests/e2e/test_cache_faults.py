"""The result cache on a whole stack while its parts fail: what ran once is there for all.

One stack with short leases, whose store is an S3 server behind a proxy. Its cell runs plain
processes; cells of the tests join it. Programs add a line to a file when they begin, so that they
are counted outside Cellrun.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from cellrun import Session
from cellrun.documents import Task
from cellrun.errors import ClientError
from cellrun.settings import ClientSettings
from controlplane.config.stack.parts.ports import free_port
from controlplane.contract.artifacts import MANIFEST
from tests.e2e.engine import EngineEvents, remove_containers
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.test_long_outages import Gate, gate, let_pass
from tests.e2e.test_lost_cell import enroll, running_on, state_of
from tests.e2e.work import attempts_of, session_of, shell_job, wait_for_end, whole_log
from tests.harness.object_store import FaultyProxy, StoreRequest, s3_environment, s3_server

pytestmark = [pytest.mark.stack, pytest.mark.engine]

SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "5",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
STALL_SECONDS = 5.0
LARGE = 3_000_000
"""Bytes of an output that a cell sends to a link of the store, not through web."""
WRITES = ("PUT", "POST", "DELETE")


class Store:
    """The proxy of the object store: refuses requests, goes away, and comes back."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._proxy = FaultyProxy(target)
        self.url = self._proxy.url

    @contextmanager
    def refusing(self, status: int, *, methods: tuple[str, ...], part: str = "") -> Iterator[None]:
        """Refuse these requests for keys with `part` within the block."""

        def fault(request: StoreRequest) -> int | None:
            return status if request.method in methods and part in request.path else None

        self._proxy.faults = fault
        try:
            yield
        finally:
            self._proxy.faults = lambda request: None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cut every connection, and refuse new ones, within the block."""
        self._proxy.close()
        try:
            yield
        finally:
            self._proxy = FaultyProxy(self._target, port=urlsplit(self.url).port or 0)

    def close(self) -> None:
        """Stop the proxy."""
        self._proxy.close()


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs that wait at a gate, and what they have in common."""

    gate: Gate
    key: str

    @property
    def begun(self) -> int:
        """Return how many have begun."""
        file = self._file
        return len(file.read_text().splitlines()) if file.exists() else 0

    @property
    def _file(self) -> Path:
        return self.gate.path.with_name("begun")

    def job(self, **fields: Any) -> dict[str, Any]:
        """A job of tasks with one key: a result, an output, and two lines of log."""
        script = (
            f"echo $CELLRUN_TASK_ID >> {self._file}; echo begun; read line < {self.gate.path};"
            " echo 5 > $CELLRUN_ROOT/out/result; echo done"
        )
        return {
            "name": self.key,
            "task_type": "process",
            "command": ["sh", "-c", script],
            "resources": {"cpu": 0.1, "memory": "16Mi", "disk": "1Mi"},
            "result_file": "/out/result",
            "outputs": [{"path": "/out/result", "name": "kept"}],
            "cache": {"enabled": True, "serialize": True, "key": self.key},
            **fields,
        }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        store = Store(url)
        yield store
        store.close()


@pytest.fixture(scope="module")
def stack(store: Store) -> Iterator[RunningStack]:
    settings = {**SHORT, **s3_environment(store.url), "CELLRUN_STORE_URL": "s3://bucket/cellrun"}
    settings["CELLRUN_CELL_CAPACITY"] = "cpu=8,memory=8Gi,disk=8Gi,gpu=0"
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1, engine="process", **settings) as running:
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    with gate() as made:
        yield Programs(made, request.node.originalname.replace("_", "-")[:60])


@contextmanager
def own_cell(stack: RunningStack, session: Session, name: str, **env: str) -> Iterator[Companion]:
    """A cell of a test, beside the stack's, that is ready."""
    folder = stack.home / name
    folder.mkdir()
    (folder / "key").write_text(enroll(stack, name))
    environment = stack.environment_of("cell-1") | {
        "CELLRUN_CELL_NAME": name,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        **env,
    }
    with Companion([sys.executable, "-m", "workers"], environment, folder / "log") as cell:
        wait_until(lambda: state_of(session, name) == "READY", seconds=60, what=f"{name} is ready")
        yield cell


@contextmanager
def cordoned(session: Session, name: str) -> Iterator[None]:
    session.cordon(name)
    try:
        yield
    finally:
        session.uncordon(name)


def submit_all(session: Session, count: int, spec: dict[str, Any]) -> list[int]:
    return [session.submit(spec)["id"] for _ in range(count)]


def tasks_of(session: Session, job_ids: list[int]) -> list[Task]:
    return [task for job_id in job_ids for task in session.tasks(job_id)]


def wait_for_ends(session: Session, job_ids: list[int]) -> list[Task]:
    """The tasks of the jobs, once all have succeeded."""
    for job_id in job_ids:
        job = wait_for_end(session, job_id)
        assert job["state"] == "SUCCEEDED", job["failure_reason"]
    return tasks_of(session, job_ids)


def wait_for_status(session: Session, job_ids: list[int], wanted: dict[str, int]) -> list[Task]:
    """The tasks of the jobs, once so many of them have each status of the cache."""

    def statuses() -> Counter[str]:
        return Counter(task["cache_status"] for task in tasks_of(session, job_ids))

    wait_until(lambda: statuses() == wanted, seconds=60, what=f"the tasks are {wanted}")
    return tasks_of(session, job_ids)


def check_one_ran(session: Session, job_ids: list[int], *, content: bytes, attempts: int) -> None:
    """One task ran, in so many attempts; all others have its result and its output."""
    tasks = wait_for_status(
        session, job_ids, {"POPULATED": 1, "HIT": len(wait_for_ends(session, job_ids)) - 1}
    )
    [owner] = [task for task in tasks if task["cache_status"] == "POPULATED"]
    counts = {
        task_id: len(found)
        for job_id in job_ids
        for task_id, found in attempts_of(session, job_id).items()
        if found
    }
    assert counts == {owner["id"]: attempts}
    assert {task["result"] for task in tasks} == {content.decode()}
    origin = {
        "job": owner["job"],
        "task": owner["id"],
        "attempt_uid": owner["attempt_uid"],
        "shared": False,
    }
    for task in tasks:
        assert task is owner or task["cache_origin"] == origin
        assert read_output(session, task["id"]) == {"kept": content}


def read_output(session: Session, task_id: int) -> dict[str, bytes]:
    """The outputs of a task, as the API serves them."""
    found = {}
    for item in session.task_artifacts(task_id):
        with session.open_artifact(item) as (_, pieces):
            found[item["name"]] = b"".join(pieces)
    return found


def test_one_container_is_created_for_twenty_identical_tasks(
    stack: RunningStack, session: Session
) -> None:
    spec = shell_job(
        "sleep 1; echo 5 > /out/result",
        result_file="/out/result",
        outputs=[{"path": "/out/result", "name": "kept"}],
        cache={"enabled": True, "serialize": True},
    )
    with (
        EngineEvents(stack.installation) as events,
        own_cell(stack, session, "with-engine", CELLRUN_CELL_DRIVER="docker"),
    ):
        job_ids = submit_all(session, 20, spec)
        check_one_ran(session, job_ids, content=b"5\n", attempts=1)
        [created] = events.of_action("create")
        assert created["cellrun.job"] == str(job_ids[0])


def test_one_more_attempt_runs_after_the_loss_of_the_cell(
    stack: RunningStack, session: Session, programs: Programs
) -> None:
    with own_cell(stack, session, "unattended") as cell:
        with cordoned(session, "cell-1"):
            job_ids = submit_all(session, 10, programs.job())
            wait_until(
                lambda: running_on(session, job_ids[0], "unattended") == 1 and programs.begun == 1,
                seconds=60,
                what="the first runs",
            )
            check_waiting(session, job_ids)
        cell.end(signal.SIGKILL)
        wait_until(
            lambda: running_on(session, job_ids[0], "cell-1") == 1 and programs.begun == 2,
            seconds=60,
            what="it runs again",
        )
        check_waiting(session, job_ids)
        programs.gate.open()
        check_one_ran(session, job_ids, content=b"5\n", attempts=2)
    [attempts] = attempts_of(session, job_ids[0]).values()
    assert [one["state"] for one in attempts] == ["WORKER_FAILED", "SUCCEEDED"]
    assert programs.begun == 2


def check_waiting(session: Session, job_ids: list[int]) -> None:
    """All but the first job wait for it, which is their pending reason."""
    first, *others = job_ids
    for task in wait_for_status(session, others, {"WAITING": len(others)}):
        reason = session.explain(task["id"])["reason"]
        assert (reason["code"], reason["job"]) == ("waiting_for_cache", first), reason
        assert f"an identical task of job {first}, since " in reason["text"]


def start_two_hundred(session: Session, programs: Programs) -> list[int]:
    """Identical tasks, one of which runs."""
    job_ids = submit_all(session, 4, programs.job(replicas=50))
    wait_for_status(session, job_ids, {"MISS": 1, "WAITING": 199})
    wait_until(lambda: programs.begun == 1, seconds=60, what="one has begun")
    return job_ids


def family_of(stack: RunningStack, name: str) -> list[int]:
    """The ids of a process of the stack and of its children."""
    pid = stack.pid_of(name)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def test_stalled_database_lets_none_of_two_hundred_run_twice(
    stack: RunningStack, session: Session, programs: Programs
) -> None:
    job_ids = start_two_hundred(session, programs)
    with frozen(family_of(stack, "postgres")):
        programs.gate.open()
        let_pass(STALL_SECONDS)
    check_one_ran(session, job_ids, content=b"5\n", attempts=1)
    assert programs.begun == 1


def test_emptied_broker_lets_none_of_two_hundred_run_twice(
    stack: RunningStack, session: Session, programs: Programs
) -> None:
    job_ids = start_two_hundred(session, programs)
    with redis.Redis.from_url(stack.environment["CELERY_BROKER_URL"]) as broker:
        broker.flushall()
        programs.gate.open()
        broker.flushall()
    check_one_ran(session, job_ids, content=b"5\n", attempts=1)
    assert programs.begun == 1


def test_read_only_store_costs_only_the_entry(
    session: Session, store: Store, programs: Programs
) -> None:
    spec = programs.job(outputs=[])
    job_ids = submit_all(session, 2, spec)
    wait_for_status(session, job_ids, {"MISS": 1, "WAITING": 1})
    with store.refusing(403, methods=WRITES):
        programs.gate.open()
        tasks = wait_for_status(session, job_ids, {"PUT_FAILURE": 2})
    # Each of them has run: there was nothing to take.
    assert [(task["state"], task["result"]) for task in tasks] == [("SUCCEEDED", "5\n")] * 2
    assert programs.begun == 2
    for task in tasks:
        uid = str(task["attempt_uid"])
        wait_until(
            lambda uid=uid: whole_log(session, uid) == "begun\ndone\n",  # type: ignore[misc]
            seconds=60,
            what="the log is there",
        )
    # And the next one makes an entry.
    job_ids = submit_all(session, 2, spec)
    wait_for_status(session, job_ids, {"POPULATED": 1, "HIT": 1})
    assert programs.begun == 3


def test_refused_manifest_costs_only_the_entry(
    session: Session, store: Store, programs: Programs
) -> None:
    programs.gate.open()
    with store.refusing(403, methods=WRITES, part=MANIFEST):
        [job_id] = submit_all(session, 1, programs.job())
        [task] = wait_for_status(session, [job_id], {"PUT_FAILURE": 1})
    assert (task["state"], task["result"]) == ("SUCCEEDED", "5\n")
    assert read_output(session, task["id"]) == {"kept": b"5\n"}


def test_tasks_finish_when_the_store_is_back(
    session: Session, store: Store, programs: Programs
) -> None:
    with gate() as other:
        known = Programs(other, f"{programs.key}-known")
        other.open()
        wait_for_status(session, submit_all(session, 1, known.job()), {"POPULATED": 1})
        job_ids = submit_all(session, 10, programs.job())
        wait_for_status(session, job_ids, {"MISS": 1, "WAITING": 9})
        with store.away():
            programs.gate.open()
            [again] = submit_all(session, 1, known.job())
            wait_for_status(session, [again], {"LOOKUP_FAILURE": 1})
            wait_until(lambda: known.begun == 2, seconds=60, what="it runs nevertheless")
            assert {task["state"] for task in tasks_of(session, job_ids)} == {"RUNNING", "PENDING"}
        check_one_ran(session, job_ids, content=b"5\n", attempts=1)
        assert programs.begun == 1
        [task] = wait_for_ends(session, [again])
        assert (task["result"], known.begun) == ("5\n", 2)
        assert read_output(session, task["id"]) == {"kept": b"5\n"}


def test_convergence_goes_on_while_the_store_is_away(
    session: Session, store: Store, programs: Programs
) -> None:
    own_keys = {"enabled": True}
    [job_id] = submit_all(session, 1, programs.job(replicas=60, outputs=[], cache=own_keys))
    wait_until(lambda: programs.begun == 60, seconds=60, what="all have begun")
    with store.away():
        programs.gate.open()
        wait_for_ends(session, [job_id])
        nowhere = [{"key": "is", "op": "eq", "values": ["nowhere"]}]
        spec = programs.job(cache={}, constraints=nowhere, scheduling_timeout_seconds=1)
        [other] = submit_all(session, 1, spec)
        assert wait_for_end(session, other, seconds=30)["state"] == "UNSCHEDULABLE"
        wait_for_status(session, [job_id], {"PUT_FAILURE": 60})


@contextmanager
def second_web(stack: RunningStack) -> Iterator[str]:
    """Another process of web, with another port: its URL."""
    port = str(free_port())
    command = stack.command_of("web")
    command[command.index("--port") + 1] = port
    url = f"http://127.0.0.1:{port}"
    token = stack.environment["CELLRUN_OPERATOR_TOKEN"]
    environment = stack.environment_of("web")
    with (
        Companion(command, environment, stack.home / "log" / "second-web.log"),
        Session(ClientSettings(url, token)) as session,
    ):
        wait_until(lambda: answers(session), seconds=60, what="the second web answers")
        yield url


def answers(session: Session) -> bool:
    try:
        session.cells()
    except ClientError:
        return False
    return True


def test_two_webs_share_a_store(stack: RunningStack, session: Session) -> None:
    """Input through one, outputs through the other, and downloads through both."""
    script = "cd $CELLRUN_ROOT; cp in/text out/small; head -c {} /dev/zero > out/large"
    spec = {
        "name": "two-webs",
        "task_type": "process",
        "command": ["sh", "-c", script.format(LARGE)],
        "resources": {"cpu": 0.1, "memory": "16Mi", "disk": "16Mi"},
        "inputs": [{"content": "the text\n", "path": "/in/text"}],
        "outputs": [{"path": f"/out/{name}", "name": name} for name in ("small", "large")],
        "cache": {"enabled": True},
    }
    with second_web(stack) as url:
        token = stack.environment["CELLRUN_OPERATOR_TOKEN"]
        with (
            Session(ClientSettings(url, token)) as other,
            own_cell(stack, session, "of-second-web", CELLRUN_CONTROL_URL=url),
            cordoned(session, "cell-1"),
        ):
            [first] = submit_all(session, 1, spec)
            wait_for_status(session, [first], {"POPULATED": 1})
            [second] = submit_all(other, 1, spec)
            [hit] = wait_for_status(other, [second], {"HIT": 1})
            for reader in (session, other):
                outputs = read_output(reader, hit["id"])
                assert outputs == {"small": b"the text\n", "large": bytes(LARGE)}
