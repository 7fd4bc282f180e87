"""A live stack with the cells of the scenes: commands, requests, signals, and what they show."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
import requests
from typer.testing import CliRunner

from cellrun import Session
from cellrun.cli import app
from cellrun.documents import Task
from controlplane.contract.wire import logins
from controlplane.domain.alerts import QUIET_SECONDS
from tests.architecture.source import ROOT
from tests.e2e.entries.scenes import Scene, Sight, Symptom
from tests.e2e.stack import Companion, RunningStack, is_running, wait_until
from tests.e2e.work import count_states, session_of
from tests.harness.troubleshooting import entries, is_symptom

CAPACITY = "cpu=4,memory=4Gi,disk=10Gi,gpu=0"
STEADY = "steady"
"""The fleet of the simulated cells that run from the start."""
REST_SECONDS = 5.0
"""The rest of an alert's quiet time, which really passes: a lasting cause renews the alert."""
ADMINISTRATOR = "administrator"
READ_ALERTS = """
SELECT kind, subject, text, extract(epoch FROM clock_timestamp() - last_raised_at)
FROM controlplane_alert WHERE cleared_at IS NULL
"""
TURN_BACK = """
UPDATE controlplane_alert SET last_raised_at = clock_timestamp() - make_interval(secs => %s),
    raised_at = least(raised_at, clock_timestamp() - make_interval(secs => %s))
WHERE kind = %s AND subject = %s AND cleared_at IS NULL
"""
ENROLL = """
import json, sys
from django.core.management import call_command
for pool, names in json.loads({pools!r}).items():
    call_command("enroll_cells", {folder!r}, *names, pool=pool)
"""


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An open alert, and the seconds since it was last raised."""

    text: str
    age: float


class LiveStack:
    """The stack, an operator at its commands, and cells that are not the stack's own."""

    def __init__(self, stack: RunningStack, cleanup: ExitStack) -> None:
        self.stack = stack
        self.cleanup = cleanup
        self._own = threading.local()
        self._one_at_a_time = threading.Lock()
        self._later_at_work = threading.Lock()
        self._folder = stack.home / "cells-of-scenes"
        self.store = stack.home / "artifacts"
        self.plugins = stack.home.parent / "plugins"
        self._cells: dict[str, Companion] = {}
        self._names: dict[str, str] = {}
        self._wanted: set[str] = set()
        self._later: list[str] = []
        self.seen: set[Symptom] = set()

    @property
    def session(self) -> Session:
        """The operator's session of the present thread."""
        if not hasattr(self._own, "session"):
            self._own.session = session_of(self.stack, operator=True)
            self.cleanup.callback(self._own.session.close)
        found: Session = self._own.session
        return found

    # -------------------------------------------------------------------------------- cells

    def prepare(self, scenes: Iterable[Scene]) -> None:
        """Enroll the cells of the scenes and start the steady ones."""
        steady: list[str] = []
        pools: dict[str, list[str]] = {}
        for scene in scenes:
            steady += scene.steady
            self._later += scene.later
            for name, pool in scene.own.items():
                pools.setdefault(pool, []).append(name)
        for pool in {*steady, *self._later, *pools, "bare"} - {"default"}:
            self.session.put_pool(pool, {})
        self._names |= {pool: f"{STEADY}-{number:03d}" for number, pool in enumerate(steady)}
        for pool in steady:
            pools.setdefault(pool, []).append(self._names[pool])
        self.enroll(pools)
        if steady:
            self.start_fleet(STEADY, len(steady))

    def enroll(self, pools: Mapping[str, Sequence[str]]) -> None:
        """Enroll cells by pool."""
        code = ENROLL.format(pools=json.dumps(pools), folder=str(self._folder / "keys"))
        self.manage("shell", "-c", code)

    def manage(self, *words: str) -> str:
        """Run `manage.py` on the host of the control plane; return what it prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "CELLRUN_HOME": str(self.stack.home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def key_file(self, name: str) -> Path:
        return self._folder / "keys" / name

    def cell_in(self, pool: str) -> str:
        """The name of the simulated cell of a pool."""
        return self._names[pool]

    def start_fleet(self, prefix: str, size: int, **settings: str) -> None:
        """Start simulated cells in one process, which is called like their prefix."""
        self._start(
            prefix,
            "workers.fleet",
            {
                "CELLRUN_FLEET_SIZE": str(size),
                "CELLRUN_FLEET_PREFIX": f"{prefix}-",
                "CELLRUN_FLEET_KEYS": str(self._folder / "keys"),
                **settings,
            },
        )

    def start_cell(
        self, name: str, driver: str = "memory", *, process: str = "", **settings: str
    ) -> None:
        """Start a cell in a process of its own, or start it again.

        `process`: the name of a process with another journal.
        """
        given = {"CELLRUN_CELL_NAME": name, "CELLRUN_CELL_DRIVER": driver}
        given["CELLRUN_CELL_KEY_FILE"] = str(self.key_file(name))
        self._start(process or name, "workers", given | settings)

    def _start(self, name: str, module: str, settings: Mapping[str, str]) -> None:
        home = self.home_of(name)
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "CELLRUN_CELL_HOME": str(home),
            "CELLRUN_CELL_CAPACITY": CAPACITY,
            "CELLRUN_CELL_EVACUATE": "true",  # one that leaves is not expected again
            "CELERY_BROKER_URL": self.stack.environment["CELERY_BROKER_URL"],
            "CELLRUN_CONTROL_URL": self.stack.environment["CELLRUN_URL"],
            "CELLRUN_INSTALLATION": self.stack.installation,
            **settings,
        }
        log = self._folder / f"{name}.log"
        cell = Companion([sys.executable, "-m", module], environment, log)
        cell.__enter__()
        if name not in self._cells:
            self.cleanup.callback(self.end_cell, name, signal.SIGTERM)
        self._cells[name] = cell

    def home_of(self, name: str) -> Path:
        return self._folder / name

    def signal_cell(self, name: str, number: int) -> None:
        """Send a signal to the process of a cell or a fleet."""
        process = self._cells[name]._process
        assert process is not None
        process.send_signal(number)

    def end_cell(self, name: str, number: int) -> None:
        """End the process of a cell or a fleet, also one that is stopped."""
        cell = self._cells[name]
        if cell.exit_code is None:
            self.signal_cell(name, number)
            self.signal_cell(name, signal.SIGCONT)
        cell.end(number)

    def end_cells(self) -> None:
        """Let all cells but those of the stack leave in order, at once."""
        for name, cell in self._cells.items():
            if cell.exit_code is None:
                self.signal_cell(name, signal.SIGTERM)
                self.signal_cell(name, signal.SIGCONT)
        for cell in self._cells.values():
            cell.end(signal.SIGTERM)
        own = "SELECT FROM controlplane_cell WHERE name <> 'cell-1' AND state <> 'LOST'"
        with suppress(AssertionError):  # what a failed scene left behind
            wait_until(
                lambda: not self.sql(f"{own} AND registered_at IS NOT NULL"),
                seconds=60,
                what="all of them have left",
            )

    def cell_is(self, name: str, state: str) -> Sight:
        return Sight(f"cell {name} is {state}", lambda: self.session.cell(name)["state"] == state)

    def later_cell(self, pool: str) -> Sight:
        """Ask for the later cell of a pool; the sight: it takes work."""
        self._wanted.add(pool)

        def holds() -> bool:
            if self._wanted != set(self._later):
                return False
            with self._later_at_work:
                if "later" not in self._cells:
                    names = {pool: f"later-{n:03d}" for n, pool in enumerate(self._later)}
                    self.enroll({pool: [name] for pool, name in names.items()})
                    self.start_fleet("later", len(names), CELLRUN_CELL_LABELS="zone=b")
            return any(
                cell["pool"] == pool
                and cell["name"].startswith("later")
                and cell["state"] == "READY"
                for cell in self.session.cells()
            )

        return Sight(f"a further cell of pool {pool} takes work", holds)

    # ---------------------------------------------------------------------------- processes

    @contextmanager
    def frozen(self, *names: str) -> Iterator[None]:
        """Stop processes of the stack by signals; let them continue at the end."""
        pids = [self.stack.pid_of(name) for name in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                if is_running(pid):
                    os.kill(pid, signal.SIGCONT)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement on the database of the stack.

        An outage of the database may have ended the connection: the statement gets another one.
        """
        earlier = getattr(self._own, "database", None)
        if earlier is not None:
            try:
                return _fetch(earlier, statement, values)
            except psycopg.OperationalError:
                earlier.close()
                self._own.database = None
        address = self.stack.environment["DATABASE_URL"]
        database = psycopg.connect(address, autocommit=True)
        self.cleanup.callback(database.close)
        self._own.database = database
        return _fetch(database, statement, values)

    @contextmanager
    def operator_of_redis(self) -> Iterator["redis.Redis[bytes]"]:
        """Connect to Redis as an administrator of its own, whose rights no scene changes."""
        with redis.Redis.from_url(self.stack.environment["CELERY_BROKER_URL"]) as control:
            rules = ("on", f">{ADMINISTRATOR}", "~*", "&*", "+@all")
            control.execute_command("ACL", "SETUSER", ADMINISTRATOR, *rules)
        address = urlsplit(self.stack.environment["CELERY_BROKER_URL"])
        with redis.Redis(
            host=str(address.hostname),
            port=address.port or 6379,
            username=ADMINISTRATOR,
            password=ADMINISTRATOR,
        ) as operator:
            yield operator

    def redis_as(self, login: str, key: bytes) -> "redis.Redis[bytes]":
        """Connect to Redis with a login of a cell."""
        url = self.stack.environment["CELERY_BROKER_URL"]
        return redis.Redis.from_url(logins.with_login(url, login, key))

    @contextmanager
    def refusing(self, name: str, change: str, table: str, condition: str) -> Iterator[None]:
        """Let PostgreSQL refuse changes of some rows."""
        self.sql(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'this row is refused'; END $$"
        )
        self.sql(
            f"CREATE TRIGGER {name} BEFORE {change} ON controlplane_{table}"
            f" FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()"
        )
        try:
            yield
        finally:
            self.sql(f"DROP TRIGGER {name} ON controlplane_{table}")
            self.sql(f"DROP FUNCTION {name}()")

    # --------------------------------------------------------------------------------- work

    def run(self, *words: object) -> str:
        """Run `cellrun` as the operator; return what it prints."""
        environment = {
            "CELLRUN_URL": self.stack.environment["CELLRUN_URL"],
            "CELLRUN_TOKEN": self.stack.environment["CELLRUN_OPERATOR_TOKEN"],
        }
        with self._one_at_a_time:  # it replaces the standard output of the process
            done = CliRunner().invoke(app, [str(word) for word in words], env=environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    def submit(self, pool: str, script: str = "noop", *, cpu: float = 0.1, **fields: Any) -> int:
        """Submit a job for simulated cells; return its id."""
        spec = {
            "name": "scene",
            "image": "x",
            "command": script.split(),
            "resources": {"cpu": cpu, "memory": "64Mi"},
            "pool": pool,
            "allow_unsatisfiable": True,
            **fields,
        }
        if "groups" in fields:
            for name in ("image", "command", "resources"):
                del spec[name]
        return self.session.submit(spec)["id"]

    def submit_process(self, pool: str, script: str, **fields: Any) -> int:
        """Submit a job of processes."""
        given = {"command": ["/bin/sh", "-c", script], "task_type": "process", "image": None}
        spec = {**given, **fields}
        spec.pop("image")
        return self.session.submit(
            {
                "name": "scene",
                "resources": {"cpu": 0.1, "memory": "64Mi"},
                "pool": pool,
                "allow_unsatisfiable": True,
                **spec,
            }
        )["id"]

    def tasks(self, job_id: int, state: str) -> list[Task]:
        return [task for task in self.session.tasks(job_id) if task["state"] == state]

    def runs(self, job_id: int, count: int = 1) -> Sight:
        """So many tasks of the job run."""
        return Sight(
            f"{count} tasks of job {job_id} run",
            lambda: count_states(self.session.job(job_id))["RUNNING"] >= count,
        )

    def ends(self, job_id: int, state: str = "SUCCEEDED") -> Sight:
        return Sight(f"job {job_id} is {state}", lambda: self.session.job(job_id)["state"] == state)

    def waits(self, job_id: int, code: str, number: int = 0) -> Sight:
        """A task of the job waits with the text of that symptom, in the API and in the command."""
        symptom = entries("Reason")[code].symptoms[number]
        literal = max(symptom.split("…"), key=len)

        def holds() -> bool:
            for task in self.tasks(job_id, "PENDING"):
                explained = self.session.explain(task["id"])
                found = explained["reason"] or {}
                is_shown = found.get("code") == code and is_symptom(symptom, explained["text"])
                # A passing reason, such as a pause of a second, may be over by now.
                if is_shown and literal in self.run("explain", "--task", task["id"]):
                    self.seen.add(Symptom("Reason", code, number))
                    return True
            return False

        return Sight(f"a task of job {job_id} waits: {symptom!r}", holds)

    # ------------------------------------------------------------------------------- alerts

    def find_alert(self, kind: str, subject: str) -> OpenAlert | None:
        """Return the open alert."""
        found = self.sql(f"{READ_ALERTS} AND kind = %s AND subject = %s", kind, subject)
        return OpenAlert(found[0][2], float(found[0][3])) if found else None

    def shows(self, kind: str, subject: str, number: int = 0) -> Sight:
        """The alert is open with the text of that symptom, and `/metrics` counts it."""
        symptom = entries("Alert")[kind].symptoms[number]

        def holds() -> bool:
            found = self.find_alert(kind, subject)
            if found is None or not is_symptom(symptom, found.text):
                return False
            if self._is_counted(kind):
                self.seen.add(Symptom("Alert", kind, number))
                return True
            return False

        return Sight(f"alert {kind} of {subject}: {symptom!r}", holds)

    def _is_counted(self, kind: str) -> bool:
        """Return whether `/metrics` counts an open alert of the kind."""
        environment = self.stack.environment
        headers = {"Authorization": f"Bearer {environment['CELLRUN_OPERATOR_TOKEN']}"}
        url = f"{environment['CELLRUN_URL']}/metrics"
        text = requests.get(url, headers=headers, timeout=60).text
        found = re.search(rf'^cellrun_alerts{{kind="{kind}"}} (\S+)$', text, re.MULTILINE)
        return found is not None and float(found[1]) > 0

    def closed(self, kind: str, subject: str) -> Sight:
        """The alert is closed. Of one that closes by age, all but the end of that time is skipped.

        A cause that lasts renews the alert in the seconds that are left.
        """
        quiet = QUIET_SECONDS.get(kind)

        def holds() -> bool:
            found = self.find_alert(kind, subject)
            if found is not None and quiet is not None and found.age < quiet - 2 * REST_SECONDS:
                back = quiet - REST_SECONDS
                self.sql(TURN_BACK, back, back, kind, subject)
            return found is None

        return Sight(f"alert {kind} of {subject} is closed", holds)

    def open_alerts(self) -> set[tuple[str, str]]:
        """Return kind and subject of each open alert."""
        return {(kind, subject) for kind, subject, *_ in self.sql(READ_ALERTS)}


def _fetch(
    database: psycopg.Connection[Any], statement: str, values: Sequence[object]
) -> list[tuple[Any, ...]]:
    found = database.execute(statement, values)
    return found.fetchall() if found.description else []
