"""The state folder of a stack (CELLRUN_HOME): paths and lock."""

import fcntl
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from controlplane.config.stack.failure import StackError


@dataclass(frozen=True, slots=True)
class StackHome:
    """Paths below one CELLRUN_HOME."""

    root: Path

    @property
    def run(self) -> Path:
        """Return the folder of state that is valid while the stack runs: pids, addresses."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Return the folder with a log file for each process."""
        return self.root / "log"

    @property
    def beat(self) -> Path:
        """Return the folder of beat's schedule, which only beat uses: the file is a pickle."""
        return self.root / "beat"

    @property
    def environment_file(self) -> Path:
        """Return the file with addresses and tokens as shell lines."""
        return self.run / "env"

    @property
    def prepared_mark(self) -> Path:
        """Return the file that exists once database, accounts and cells are prepared."""
        return self.run / "prepared"

    @property
    def stack_pid_file(self) -> Path:
        """Return the file with the id of the process that `make down` signals."""
        return self.run / "stack.pid"

    @property
    def failure_file(self) -> Path:
        """Return the file with the reason of the last start that failed."""
        return self.run / "failure"

    def pid_file(self, process: str) -> Path:
        """Return the file with the current process id of `process`."""
        return self.run / f"{process}.pid"

    def cell(self, name: str) -> Path:
        """Return the state folder of one cell."""
        return self.root / "cells" / name

    def create(self) -> None:
        """Create the folders; another user needs access to PostgreSQL's data only."""
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.run, self.logs, self.beat, self.root / "cells"):
            folder.mkdir(exist_ok=True, mode=0o700)

    def hold(self) -> IO[str]:
        """Lock this folder until the process ends. Raise StackError naming another holder."""
        self.create()
        lock = (self.run / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StackError(
                f"a stack already runs in {self.root} (process {self.running_pid() or 'unknown'}):"
                " stop it with `make down`, or set another CELLRUN_HOME"
            ) from None
        return lock

    def is_held(self) -> bool:
        """Return whether a stack runs in this folder."""
        try:
            with (self.run / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def running_pid(self) -> int | None:
        """Return the process id of the stack that runs in this folder, or None."""
        try:
            return int(self.stack_pid_file.read_text())
        except (OSError, ValueError):
            return None

    def forget_run(self) -> None:
        """Remove the files that are valid only while the stack runs."""
        files = ("supervisord.conf", "redis.conf", "redis-users.acl")
        gone = (self.environment_file, self.prepared_mark, *(self.run / name for name in files))
        for path in (*self.run.glob("*.pid"), *gone):
            path.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write `text` atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def shell_lines(values: dict[str, str]) -> str:
    """Return `values` as lines that a shell can read and export."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def read_shell_lines(text: str) -> dict[str, str]:
    """Return the values in the output of `shell_lines`."""
    words = [shlex.split(line.removeprefix("export "))[0] for line in text.splitlines()]
    return dict(word.split("=", 1) for word in words)
