"""The units of deploy/systemd start a Cellrun that works, each by its own command line.

They run as systemd would run them, without supervision: command, working folder and environment
come from the unit and from the examples, filled in with throw-away services.
"""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from cellrun import Session
from cellrun.settings import ClientSettings
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.parts.ports import free_port
from tests.architecture.source import ROOT
from tests.e2e.stack import is_running, wait_until
from tests.e2e.work import run_to_end
from tests.harness.deployed import CELL, as_here, read_example, read_units

pytestmark = pytest.mark.stack

WORKERS = ("placement", "convergence", "inbox", "callbacks")
WITHOUT_FILES = ("placement", "inbox", "callbacks")
TOKEN = "cr_only-for-this-test-" + "t" * 32
# Databases of one Redis share nothing; the other tests use the first.
REDIS_DATABASE = 11


class Deployment:
    """All units, running on this machine against services of their own."""

    def __init__(self, folder: Path, database_url: str, broker_url: str) -> None:
        self.folder = folder
        self.ports = {"web_port": free_port(), "flower_port": free_port()}
        self.url = f"http://127.0.0.1:{self.ports['web_port']}"
        self.flower_url = f"http://127.0.0.1:{self.ports['flower_port']}"
        filled_in = {
            "DATABASE_URL": database_url,
            "CELERY_BROKER_URL": broker_url,
            "CELLRUN_SECRET_KEY": "only-for-this-test-" * 3,
            "CELLRUN_PUBLIC_URL": self.url,
            "CELLRUN_CONTROL_URL": self.url,
            "CELLRUN_HOME": str(folder),
            "FLOWER_BASIC_AUTH": "oncall:only-for-this-test",
            "CELLRUN_CELL_DRIVER": "process",
        }
        self.examples = {
            f"/etc/cellrun/{name}": {
                key: filled_in.get(key, value)
                for key, value in read_example(f"{name}.example").items()
            }
            for name in ("control.env", "beat.env", "flower.env", "cell.env")
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> Path:
        """What a process printed."""
        return self.folder / f"{name}.log"

    def manage(self, *arguments: str, **env: str) -> str:
        """Run manage.py as deploy/README.md describes, and return its output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**os_basics(), **self.examples["/etc/cellrun/control.env"], **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def prepare(self) -> None:
        """What comes before the first start."""
        self.manage("migrate", "--no-input", "--verbosity=0")
        self.manage("bootstrap", "--quiet", CELLRUN_OPERATOR_TOKEN=TOKEN)
        # systemd's StateDirectory= of beat.
        StackHome(self.folder).beat.mkdir()
        key = self.folder / f"{CELL}.key"
        key.write_text(self.manage("enroll_cell", CELL))

    def start(self) -> None:
        """Start every unit at once, in no order, as systemd does."""
        for name, unit in read_units().items():
            environment = {**os_basics(), **self.examples[unit.environment_file]}
            if name in WITHOUT_FILES:
                environment["CELLRUN_HOME"] = "/nonexistent"
            for key, value in unit.environment.items():
                environment[key] = value.replace("/etc/cellrun/cells", str(self.folder)).replace(
                    "/var/lib/cellrun", str(self.folder)
                )
            with self.log(name).open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    as_here(unit.command, self.folder, **self.ports),
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def stop(self) -> None:
        """Stop all as systemd does, and demand that each is gone in its time."""
        for process in self.processes.values():
            process.terminate()
        late = []
        for name, process in self.processes.items():
            try:
                process.wait(timeout=float(read_units()[name].settings["TimeoutStopSec"]))
            except subprocess.TimeoutExpired:
                late.append(name)
                process.kill()
                process.wait()
        assert late == []

    def session(self) -> Session:
        """A client with the operator's token."""
        return Session(ClientSettings(self.url, TOKEN))


def os_basics() -> dict[str, str]:
    """What systemd gives every process."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    name = f"deployed_{os.getpid()}"
    broker = urlsplit(os.environ["CELERY_BROKER_URL"])._replace(path=f"/{REDIS_DATABASE}").geturl()
    server = urlsplit(os.environ["DATABASE_URL"])
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    running = Deployment(
        tmp_path_factory.mktemp("deployed"), server._replace(path=f"/{name}").geturl(), broker
    )
    try:
        running.prepare()
        running.start()
        yield running
        running.manage("check_invariants")
    finally:
        running.stop()
        with redis.Redis.from_url(broker) as connected:
            connected.flushdb()
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_web_answers(deployment: Deployment) -> None:
    wait_until(lambda: answers(f"{deployment.url}/healthz"), seconds=60, what="web answers")


def test_flower_answers(deployment: Deployment) -> None:
    url = f"{deployment.flower_url}/healthcheck"
    wait_until(lambda: answers(url), seconds=60, what="Flower answers")


@pytest.mark.parametrize("name", WORKERS)
def test_worker_reports_ready(deployment: Deployment, name: str) -> None:
    wait_until(
        lambda: f"{name}@{os.uname().nodename} ready" in deployment.log(name).read_text(),
        seconds=60,
        what=f"{name} is ready",
    )


def test_beat_sends_the_ticks(deployment: Deployment) -> None:
    url = f"{deployment.url}/readyz"
    wait_until(lambda: answers(url), seconds=60, what="readyz answers 200")


def test_the_cell_registers(deployment: Deployment) -> None:
    with deployment.session() as session:
        wait_until(
            lambda: [cell["state"] for cell in session.cells()] == ["READY"],
            seconds=60,
            what="the cell is READY",
        )


def test_deployment_runs_a_job(deployment: Deployment) -> None:
    spec = {
        "name": "deployed",
        "task_type": "process",
        "command": ["sh", "-c", 'echo fine > "$CELLRUN_ROOT/out/result"'],
        "resources": {"cpu": 0.1, "memory": "16Mi"},
    }
    with deployment.session() as session:
        job, task = run_to_end(session, spec)
    assert (job["state"], task["result"], task["cell_id"]) == ("SUCCEEDED", "fine\n", CELL)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, {"secret key", "database", "broker"}) for name in ("web", *WORKERS)),
        ("beat", {"broker"}),
        ("flower", {"broker", "login of Flower"}),
        (CELL, {"broker"}),
    ],
)
def test_environment_of_a_unit_holds_only_its_secrets(
    deployment: Deployment, name: str, expected: set[str]
) -> None:
    secrets = {
        "secret key": deployment.examples["/etc/cellrun/control.env"]["CELLRUN_SECRET_KEY"],
        "database": deployment.examples["/etc/cellrun/control.env"]["DATABASE_URL"],
        "broker": deployment.examples["/etc/cellrun/control.env"]["CELERY_BROKER_URL"],
        "login of Flower": deployment.examples["/etc/cellrun/flower.env"]["FLOWER_BASIC_AUTH"],
    }
    environment = Path(f"/proc/{deployment.processes[name].pid}/environ").read_text()
    assert {label for label, secret in secrets.items() if secret in environment} == expected


def test_no_unit_has_exited(deployment: Deployment) -> None:
    ended = [name for name, process in deployment.processes.items() if not is_running(process.pid)]
    assert ended == []
