"""A stack as `make up` starts it, for tests: real processes, own folder, free ports."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.architecture.source import ROOT

START_SECONDS = 120.0
STOP_SECONDS = 120.0
OPEN: list[Path] = []
"""Folders that are open now; what lies there is gone with them."""
PREFIXES = ("CELLRUN_", "CELERY_", "DATABASE_URL", "DJANGO_", "MAKE")


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Return when `condition` holds; fail, naming `what`, when it does not within `seconds`."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds:g} s still not so: {what}"
        time.sleep(0.05)


class RunningStack:
    """Use as a context manager. What the stack printed is in `output` below its folder."""

    def __init__(self, home: Path, *, cells: int = 2, engine: str = "docker", **env: str) -> None:
        self.home = home
        self._given = {"CELLS": str(cells), "ENGINE": engine, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}

    def __enter__(self) -> "RunningStack":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def output(self) -> Path:
        """What the command printed."""
        return self.home / "output"

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the stack and wait until it reports that it is up."""
        if self._process is not None:
            self._process.wait(timeout=STOP_SECONDS)
        self.environment = {}
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)
        }
        environment |= {"CELLRUN_HOME": str(self.home), "WEB_PORT": "0", "FLOWER_PORT": "0"}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.config.stack", "up"],
                cwd=ROOT,
                env=environment | self._given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_until(self._is_up_or_over, seconds=START_SECONDS, what="the stack is up")
            assert self._process.poll() is None, self.output.read_text()
        except BaseException:
            self.stop()
            raise
        self.environment = read_environment(self.home)

    def _is_up_or_over(self) -> bool:
        assert self._process is not None
        over = self._process.poll() is not None
        return over or "Ctrl-C stops the stack" in self.output.read_text()

    def stop(self, number: int = signal.SIGINT) -> int:
        """Stop as Ctrl-C does and return the exit code. Repeatable.

        Whatever was done to a stack that was up: it is stopped in order, its rows violate nothing.
        """
        assert self._process is not None
        is_up = self._process.poll() is None
        try:
            if is_up and self.environment:
                check_invariants({"CELLRUN_HOME": str(self.home)})
        finally:
            if is_up:
                self._process.send_signal(number)
            code = self._process.wait(timeout=STOP_SECONDS)
        return code

    def pid_of(self, name: str) -> int:
        """The current process id of one of the stack's processes."""
        return int((self.home / "run" / f"{name}.pid").read_text())

    def kill(self, name: str) -> int:
        """Kill a process with -9 and return the process id that it had."""
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def processes(self) -> dict[str, int]:
        """Every process of the stack by name."""
        return {path.stem: int(path.read_text()) for path in (self.home / "run").glob("*.pid")}

    @property
    def installation(self) -> str:
        """The id in the labels of this stack's containers."""
        return str(json.loads((self.home / "credentials.json").read_text())["installation"])

    @property
    def flower_url(self) -> str:
        """Return the address of Flower, as the stack printed it at the start."""
        [line] = [line for line in self.output.read_text().splitlines() if "  Flower " in line]
        return line.split()[1]

    @property
    def flower_login(self) -> tuple[str, str]:
        """Flower's user and password."""
        user, _, password = self.environment["FLOWER_BASIC_AUTH"].partition(":")
        return user, password

    def environment_of(self, name: str) -> dict[str, str]:
        """The environment in which one of the stack's processes runs."""
        pairs = Path(f"/proc/{self.pid_of(name)}/environ").read_text().rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs)

    def command_of(self, name: str) -> list[str]:
        """The command line of one of the stack's processes."""
        return Path(f"/proc/{self.pid_of(name)}/cmdline").read_text().rstrip("\0").split("\0")

    def kill_and_await(self, *names: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to processes at once and return when each runs again as another."""
        killed = {name: self.pid_of(name) for name in names}
        for pid in killed.values():
            os.kill(pid, number)
        for name, pid in killed.items():
            wait_until(
                lambda name=name, pid=pid: (  # type: ignore[misc]
                    self.pid_of(name) != pid and is_running(self.pid_of(name))
                ),
                seconds=30,
                what=f"{name} runs again",
            )


class Companion:
    """A process beside the stack's own, in an environment like theirs; ends with its block."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command, self._environment, self.log = command, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Companion":
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # In its own process group: when the shell of a group with a stopped process ends,
                # the system sends SIGHUP to the whole group.
                start_new_session=True,
            )
        return self

    @property
    def exit_code(self) -> int | None:
        """How it ended; None: it runs."""
        return self._process.poll() if self._process is not None else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: int) -> None:
        """Send a signal and return when the process has gone. Repeatable."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def check_invariants(environment: Mapping[str, str]) -> None:
    """Fail with all that `manage.py check_invariants` finds in the database of `environment`."""
    done = subprocess.run(
        [sys.executable, "manage.py", "check_invariants"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's: PostgreSQL does not run as root."""
    folder = Path(tempfile.mkdtemp(prefix="cellrun-test-", dir="/tmp"))
    folder.chmod(0o755)
    OPEN.append(folder)
    try:
        yield folder
    finally:
        OPEN.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)


def read_environment(home: Path) -> dict[str, str]:
    """Return what run/env holds."""
    lines = (home / "run" / "env").read_text().splitlines()
    words = [shlex.split(line.removeprefix("export "))[0] for line in lines]
    return dict(word.split("=", 1) for word in words)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that ended but was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False


def remnants(home: Path) -> list[str]:
    """Return every running process whose command line or environment speaks of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if pid == os.getpid() or not is_running(pid):
            continue
        try:
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if str(home).encode() in text:
            found.append(f"{pid} {(path / 'cmdline').read_bytes()[:200]!r}")
    return found


def through(stack: RunningStack, port: int) -> str:
    """The broker's address with its login, by another port of this machine."""
    broker = urlsplit(stack.environment["CELERY_BROKER_URL"])
    return broker._replace(netloc=f"{broker.username}:{broker.password}@127.0.0.1:{port}").geturl()
