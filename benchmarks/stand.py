"""A benchmark's stand: an own PostgreSQL (fsync on), an own Redis, the real processes as shipped.

The processes, their commands and their settings are those of `make up`; only supervisor is left
out, so that each benchmark chooses which of them run. The cells are one fleet process or
several, or, with a driver that runs something, one real cell.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from controlplane.config.stack import launch, preparation
from controlplane.config.stack.parts import credentials, ports, postgres, redis
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.processes import (
    PROJECT,
    Process,
    StackPlan,
    inherited_environment,
    list_processes,
)
from workers.fleet_config import fleet_names

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
FLEET = "fleet"
# The processes of the control plane, without Flower, which no benchmark needs.
CONTROL = ("web", "placement", "convergence", "inbox", "callbacks", "beat")
# Room for 100 tasks of 0.01 cpu a hundred times over: what is measured never waits for capacity.
CAPACITY = "cpu=16,memory=64Gi,disk=400Gi,gpu=0"


class NotReady(RuntimeError):
    """A process was not ready in time; the text names it and its log."""


class Unavailable(NotReady):
    """A request was answered with 503: it can be repeated later."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a benchmark wants of its stand. `database_options`: PostgreSQL's, as name=value.

    `settings`: of the control plane, where the shipped ones will not do; `environment`: added to
    that of its processes; `capacity`: of each cell.
    With a `driver` other than memory there is one cell. `cells` are spread evenly over `fleets`
    processes. Of `webs` web processes each has a port of its own.
    """

    cells: int = 100
    fleets: int = 1
    webs: int = 1
    driver: str = "memory"
    flower: bool = False
    database_options: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    capacity: str = CAPACITY

    def fleet_cells(self) -> dict[str, list[str]]:
        """The names of the cells, by the name of the process that they are."""
        if self.fleets == 1:
            return {FLEET: fleet_names(_prefix(FLEET), self.cells)}
        each, rest = divmod(self.cells, self.fleets)
        assert rest == 0, f"{self.cells} cells cannot be spread evenly over {self.fleets} processes"
        processes = [f"{FLEET}-{number}" for number in range(self.fleets)]
        return {process: fleet_names(_prefix(process), each) for process in processes}


class Stand:
    """Everything that runs, by name. Made by `standing`. `urls`: of each web process."""

    def __init__(self, plan: StackPlan, running: dict[str, subprocess.Popen[bytes]]) -> None:
        self.plan = plan
        self.urls = [plan.url]
        self._running = running
        self._processes: dict[str, Process] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the benchmark's own; each statement is its own transaction."""
        return psycopg.connect(self.plan.database_url, autocommit=True)

    def post(self, path: str, body: Any, *, operator: bool = False) -> Any:
        """POST to the API; the answer."""
        secret = self.plan.credentials
        token = secret.operator_token if operator else secret.submitter_token
        request = urllib.request.Request(
            self.plan.url + path,
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with _opener().open(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as fault:
            raise NotReady(f"POST {path}: {fault.code} {fault.read().decode()[:500]}") from None

    def get(self, path: str) -> Any:
        """GET from the API as an operator; the answer."""
        return json.loads(self.read(path))

    def read(self, path: str) -> bytes:
        """GET any path as an operator; the body of the answer."""
        token = self.plan.credentials.operator_token
        request = urllib.request.Request(
            self.plan.url + path, headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with _opener().open(request, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as fault:
            kind = Unavailable if fault.code == 503 else NotReady
            raise kind(f"GET {path}: {fault.code} {fault.read().decode()[:500]}") from None

    def check_alive(self) -> None:
        """Raises NotReady if a process has ended."""
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                raise NotReady(f"{name} ended with {process.returncode}; {self._log_end(name)}")

    def wait_until(self, condition: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Return when `condition` holds. Raises NotReady."""
        give_up = time.monotonic() + seconds
        while not condition():
            self.check_alive()
            if time.monotonic() > give_up:
                raise NotReady(f"after {seconds:g} s still not so: {what}")
            time.sleep(0.01)

    def run_module(self, module: str, *arguments: str) -> str:
        """Run one of our modules with the control plane's settings; what it printed."""
        command = [sys.executable, "-m", module, *arguments]
        environment = inherited_environment() | self.plan.control_environment("command")
        done = subprocess.run(
            command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def start(self, process: Process) -> None:
        """Start a process, which ends with the stand."""
        self._processes[process.name] = process
        self._running[process.name] = _start(self.plan, process, process.command)

    def start_again(self, name: str) -> None:
        """Start a process anew that was stopped or killed."""
        self.start(self._processes[name])

    def kill(self, name: str) -> None:
        """Kill a process with all that it started, with -9, and return when it is gone."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> int:
        """Stop one process, wait for it, and return its exit code."""
        process = self._running.pop(name)
        try:
            process.send_signal(_stop_signal(name))
            return process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._running[name] = process
            raise

    def list_ended(self) -> list[str]:
        """Return the processes that have ended and were not stopped."""
        found = list(self._running.items())
        return [name for name, process in found if process.poll() is not None]

    def _log_end(self, name: str) -> str:
        log = self.plan.home.logs / f"{name}.log"
        return "\n".join([f"the end of {log}:", *log.read_text().splitlines()[-20:]])


@contextlib.contextmanager
def standing(wanted: Wanted) -> Iterator[Stand]:
    """A stand with everything ready; on leaving, nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="cellrun-bench-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        stand = Stand(_plan(folder, wanted), running)
        _start_services(stand, wanted)
        _prepare(stand, wanted)
        _start_processes(stand, wanted)
        _wait_for_cells(stand, wanted.cells)
        yield stand
    finally:
        _stop(running)
        if "CELLRUN_BENCH_KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def _plan(folder: Path, wanted: Wanted) -> StackPlan:
    home = StackHome(folder / "home")
    home.create()
    taken: set[int] = set()
    secret = credentials.load_or_create(home)
    cluster = postgres.Cluster(folder / "postgres", port=ports.free_port(taken=taken))
    redis_port = ports.free_port(taken=taken)
    return StackPlan(
        home=home,
        credentials=secret,
        web_port=ports.free_port(taken=taken),
        flower_port=ports.free_port(taken=taken),
        cells=0,
        driver="memory",
        database_url=f"postgresql://{postgres.USER}:{secret.database_password}"
        f"@127.0.0.1:{cluster.port}/{postgres.DATABASE}",
        broker_url=redis.broker_url(port=redis_port, password=secret.redis_password),
        database=cluster,
        redis_port=redis_port,
        overrides=dict(wanted.settings),
    )


def _start_services(stand: Stand, wanted: Wanted) -> None:
    plan = stand.plan
    assert plan.database is not None
    assert plan.redis_port is not None
    redis.write_password(plan.home.run, plan.credentials.redis_password)
    postgres.create_cluster(plan.database, password=plan.credentials.database_password)
    for process in list_processes(plan):
        if process.group == "services":
            command = list(process.command)
            if process.name == "postgres":
                for option in wanted.database_options:
                    command += ["-c", option]
            stand.start(replace(process, command=command))
    postgres.wait_until_ready(plan.database, deadline_seconds=READY_SECONDS)
    redis.wait_until_ready(port=plan.redis_port, deadline_seconds=READY_SECONDS)


def _prepare(stand: Stand, wanted: Wanted) -> None:
    plan = stand.plan
    preparation.prepare(plan, lambda _: None, stand.check_alive)
    names = [name for cells in wanted.fleet_cells().values() for name in cells]
    command = [sys.executable, "manage.py", "enroll_cells", str(plan.home.root / "keys"), *names]
    environment = inherited_environment() | plan.control_environment("command")
    # Its audit lines are many and of no interest.
    enrolled = subprocess.run(
        command,
        cwd=PROJECT,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if enrolled.returncode:
        raise NotReady(f"enroll_cells failed: {(enrolled.stdout + enrolled.stderr)[-2000:]}")
    plan.home.prepared_mark.touch()


def _start_processes(stand: Stand, wanted: Wanted) -> None:
    plan = stand.plan
    names = (*CONTROL, "flower") if wanted.flower else CONTROL
    for process in list_processes(plan):
        if process.name in names:
            environment = {**process.environment, **wanted.environment}
            stand.start(replace(process, environment=environment))
    for number in range(2, wanted.webs + 1):
        process, url = _another_web(plan, number)
        stand.start(process)
        stand.urls.append(url)
    addresses = [f"{url}/healthz" for url in stand.urls]
    if wanted.flower:
        addresses.append(f"{plan.flower_url}/healthcheck")
    for address in addresses:
        stand.wait_until(
            lambda address=address: _answers(address),  # type: ignore[misc]
            f"{address} answers",
            seconds=READY_SECONDS,
        )
    module = "workers.fleet" if wanted.driver == "memory" else "workers"
    for name, cells in wanted.fleet_cells().items():
        environment = _fleet_environment(plan, wanted, name, cells)
        command = [sys.executable, "-m", module]
        stand.start(Process(name, "cells", command, environment=environment))


def _another_web(plan: StackPlan, number: int) -> tuple[Process, str]:
    """A web process like the stack's, on a port of its own, and where it answers."""
    port = ports.free_port(taken={plan.web_port, plan.flower_port})
    (web,) = [process for process in list_processes(plan) if process.name == "web"]
    command = [str(port) if word == str(plan.web_port) else word for word in web.command]
    return replace(web, name=f"web-{number}", command=command), f"http://127.0.0.1:{port}"


def _fleet_environment(
    plan: StackPlan, wanted: Wanted, process: str, cells: Sequence[str]
) -> dict[str, str]:
    keys = plan.home.root / "keys"
    which = {
        "CELLRUN_FLEET_SIZE": str(len(cells)),
        "CELLRUN_FLEET_PREFIX": _prefix(process),
        "CELLRUN_FLEET_KEYS": str(keys),
    }
    if wanted.driver != "memory":
        (name,) = cells
        which = {
            "CELLRUN_CELL_NAME": name,
            "CELLRUN_CELL_KEY_FILE": str(keys / name),
            "CELLRUN_CELL_DRIVER": wanted.driver,
        }
    return {
        **which,
        "CELLRUN_CELL_HOME": str(plan.home.cell(process)),
        "CELLRUN_CELL_CAPACITY": wanted.capacity,
        "CELLRUN_CONTROL_URL": plan.url,
        "CELLRUN_INSTALLATION": plan.credentials.installation,
        "CELERY_BROKER_URL": plan.broker_url,
    }


def _prefix(process: str) -> str:
    return f"{process}-"


def _start(plan: StackPlan, process: Process, command: Sequence[str]) -> subprocess.Popen[bytes]:
    with (plan.home.logs / f"{process.name}.log").open("wb") as log:
        return subprocess.Popen(
            list(command),
            cwd="/" if process.name == "postgres" else PROJECT,
            env=inherited_environment() | process.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_us,
        )


def _die_with_us() -> None:
    launch.die_with_parent("TERM")


def _wait_for_cells(stand: Stand, cells: int) -> None:
    statement = "SELECT count(*) FROM controlplane_cell WHERE state = 'READY'"
    with stand.connect() as connection:

        def all_ready() -> bool:
            row = connection.execute(statement).fetchone()
            return row is not None and row[0] == cells

        stand.wait_until(all_ready, f"{cells} cells are READY", seconds=READY_SECONDS)


def _stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """The cells and the control plane, then the services."""
    services = [name for name in ("redis", "postgres") if name in running]
    for names in ([name for name in running if name not in services], services):
        for name in names:
            running[name].send_signal(_stop_signal(name))
        for name in names:
            try:
                running[name].wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                running[name].kill()
                running[name].wait()


def _stop_signal(name: str) -> signal.Signals:
    """Return SIGINT for PostgreSQL, which then does not wait for its clients."""
    return signal.SIGINT if name == "postgres" else signal.SIGTERM


def _answers(address: str) -> bool:
    try:
        with _opener().open(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
