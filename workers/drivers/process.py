"""Tasks as plain processes of this machine: no image and NO ISOLATION, only separate folders.

A task sees the whole machine, as the user the cell runs as; `user`, `network`, `read_only` and
`max_pids` are not enforced, cpu is not limited, and memory only by address space (RLIMIT_AS). Every
path of a task lies under CELLRUN_ROOT, a folder of the attempt's own, where it also starts.

Each attempt has a small supervisor (process_supervisor.py) that outlives the cell: it writes
down what started and how it ended, so that a new cell process learns the real exit status.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workers.attempt.capture import Capture, cut_note
from workers.attempt.engine import (
    Created,
    EngineError,
    Life,
    NoSuchContainer,
    Placed,
    Use,
    View,
    container_name,
)
from workers.attempt.events import Found, Launch
from workers.drivers.process_looks import Ports, cpu_seconds_of, run_check
from workers.drivers.rooted import place_below, read_head_below
from workers.environment import port_variable

SUPERVISOR = Path(__file__).with_name("process_supervisor.py")
READY_SECONDS = 20.0  # for a supervisor to say that its task runs, on a machine under load
POLL_SECONDS = 0.05  # where the system has no pidfd_open
# Of the cell's own environment a task gets only these; the cell's secrets are none of its business.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


class ProcessEngine:
    """An Engine (workers.attempt.engine) whose "containers" are a folder and a process each."""

    name = "process"
    needs_image = False
    keeps_logs = False

    def __init__(self, *, home: Path, max_log_bytes: int) -> None:
        self._work = home / "work"
        self._logs = home / "logs"
        self._max_log_bytes = max_log_bytes
        self._ports = Ports()

    def has_image(self, image: str) -> bool:
        """No image is needed."""
        return True

    def pull(self, image: str, on_progress: Callable[[int], None]) -> None:
        """No image is needed."""

    # ------------------------------------------------------------------------- life

    def create(self, launch: Launch, placed: Sequence[Placed]) -> Created:
        """Write down what is to be run, as one step."""
        order_path = self._folder(launch.uid) / "order.json"
        is_new = not order_path.exists()
        if is_new:
            root = self._root(launch.uid)
            workdir = root / (launch.spec.workdir or "/").strip("/")
            if ".." in (launch.spec.workdir or "").split("/"):
                raise EngineError("working directory: .. is not allowed", 400)
            if not (launch.spec.entrypoint or ()) + launch.spec.command:
                raise EngineError("no command specified", 400)
            order_path.parent.mkdir(parents=True, exist_ok=True)
            workdir.mkdir(parents=True, exist_ok=True)
            write_whole(order_path, self._order(launch, root, workdir))
        return Created(container_name(launch.uid), is_new)

    def _order(self, launch: Launch, root: Path, workdir: Path) -> dict[str, Any]:
        spec = launch.spec
        own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        ports = self._ports.choose(launch.uid, spec.ports)
        listens = {port_variable(name): str(port) for name, port in ports.items()}
        return {
            "argv": [*(spec.entrypoint or ()), *spec.command],
            "env": {**own, **spec.env, **launch.env, **listens, "CELLRUN_ROOT": str(root)},
            "ports": ports,
            "cwd": str(workdir),
            "memory_bytes": spec.resources.get("memory_mib", 0) * 2**20,
            "logs": str(self._logs / launch.uid),
            "max_log_bytes": self._max_log_bytes,
            "cut_note": cut_note(self._max_log_bytes).decode(),
        }

    def put(self, launch: Launch, placed: Sequence[Placed]) -> None:
        """Copy, or link what is bound, under the attempt's root."""
        place_below(self._root(launch.uid), placed)

    def start(self, uid: str) -> None:
        """Start a supervisor, once: the claim file makes a second one impossible."""
        folder = self._folder(uid)
        try:
            claim = os.open(folder / "claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            raise EngineError("it was started before") from None
        except FileNotFoundError:
            raise NoSuchContainer("there is no such process") from None
        try:
            supervisor = _start_supervisor(folder, claim)
        finally:
            os.close(claim)
        answer = _read_line(supervisor)
        if answer == "running":
            _reap_later(supervisor)
            return
        supervisor.kill()
        supervisor.wait()
        if answer.startswith("exec "):
            raise EngineError(answer, 400)
        (folder / "claim").unlink()  # nothing ran, and its supervisor is dead
        raise EngineError(f"the supervisor failed: {answer or _tail(folder)}")

    def view(self, uid: str) -> View | None:
        """The process, from what its supervisor wrote."""
        folder = self._folder(uid)
        if not (folder / "order.json").exists():
            return None
        name = container_name(uid)
        if not (folder / "claim").exists():
            return View(Life.CREATED, name)
        begin = _read_begin(folder)
        started_at = begin["at"] if begin else None
        if begin is not None and _is_alive(begin["supervisor"]):
            return View(Life.RUNNING, name, started_at=started_at)
        end = read_whole(folder / "end.json")
        if end is None:  # its supervisor was killed, and the task with it
            return View(Life.ENDED, name, started_at=started_at)
        return View(Life.ENDED, name, end["code"], started_at=started_at, ended_at=end["at"])

    def wait(self, uid: str, seconds: float) -> bool:
        """Wait until the supervisor has written down the end, or is no more."""
        begin = read_whole(self._folder(uid) / "begin.json")
        if begin is None or (self._folder(uid) / "end.json").exists():
            return True
        is_over = wait_for_exit(begin["supervisor"], seconds)
        _reap()
        return is_over

    def signal(self, uid: str, name: str) -> bool:
        """Send a signal to the task's first process; its supervisor ends the others after it."""
        number = _signal_number(name)
        begin = read_whole(self._folder(uid) / "begin.json")
        if begin is None or not _is_alive(begin["task"]):
            return False
        try:
            os.kill(begin["task"]["pid"], number)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise EngineError(str(error)) from error
        return True

    # ------------------------------------------------------------------------- traces

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """The ports that were chosen for it: it shares the network of this machine."""
        order = read_whole(self._folder(launch.uid) / "order.json")
        if order is None:
            raise NoSuchContainer("there is no such process")
        return dict(order.get("ports") or {})

    def use(self, uid: str) -> Use:
        """The time of the process and all its children; nobody can tell what they sent."""
        begin = read_whole(self._folder(uid) / "begin.json")
        if begin is None or not _is_alive(begin["supervisor"]):
            raise NoSuchContainer("the process is over")
        return Use(cpu_seconds_of(begin["supervisor"]["pid"]))

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Run a command with the task's own environment, in its folder."""
        order = read_whole(self._folder(launch.uid) / "order.json")
        if order is None:
            raise NoSuchContainer("there is no such process")
        return run_check(command, order, seconds)

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """The head of a regular file; a link is not followed."""
        return read_head_below(self._root(launch.uid), path, limit)

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Nothing to copy: the supervisor writes to the log folder itself."""

    def remove(self, uid: str) -> None:
        """Kill it if it runs, and forget it."""
        begin = read_whole(self._folder(uid) / "begin.json")
        if begin is not None and not (self._folder(uid) / "end.json").exists():
            self.signal(uid, "KILL")
            if not wait_for_exit(begin["supervisor"], READY_SECONDS):
                raise EngineError("the process does not end")
        shutil.rmtree(self._work / uid, ignore_errors=True)
        self._ports.forget(uid)

    def find(self) -> Iterable[Found]:
        """The attempts that have a folder here."""
        for order in self._work.glob("*/process/order.json"):
            uid = order.parent.parent.name
            view = self.view(uid)
            if view is not None:
                yield Found(uid, view.life is Life.RUNNING, view.container_id)

    def close(self) -> None:
        """Nothing is held open."""

    def _folder(self, uid: str) -> Path:
        return self._work / uid / "process"

    def _root(self, uid: str) -> Path:
        return self._work / uid / "root"


# ----------------------------------------------------------------------------- files


def write_whole(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON file that is there as a whole or not at all."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(body), encoding="utf-8")
    os.replace(temporary, path)


def read_whole(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None if it is not there (yet)."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _tail(folder: Path) -> str:
    return (folder / "supervisor.log").read_text(encoding="utf-8", errors="replace")[-500:]


# ----------------------------------------------------------------------------- processes


def _start_supervisor(folder: Path, claim: int) -> "subprocess.Popen[bytes]":
    """It inherits `claim`, locked: so the lock lives exactly as long as it does."""
    fcntl.flock(claim, fcntl.LOCK_EX)
    with open(folder / "supervisor.log", "wb") as errors:
        # -I -S: no site-packages; starting one takes about 10 ms.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder), str(claim)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            pass_fds=(claim,),
            cwd="/",
        )


def _read_begin(folder: Path) -> dict[str, Any] | None:
    """What the supervisor wrote of the start; one that is only just starting is waited for."""
    end = time.monotonic() + READY_SECONDS
    while (begin := read_whole(folder / "begin.json")) is None and time.monotonic() < end:
        if not _is_locked(folder / "claim"):
            return read_whole(folder / "begin.json")
        time.sleep(POLL_SECONDS)
    return begin


def _is_locked(path: Path) -> bool:
    """Whether a supervisor holds `path`; one that is being removed is held by nobody."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _read_line(supervisor: "subprocess.Popen[bytes]") -> str:
    """The one line a supervisor says when its task runs, or cannot."""
    assert supervisor.stdout is not None
    with supervisor.stdout as pipe:
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(pipe, select.POLLIN)
        ready = poller.poll(READY_SECONDS * 1000)
        return pipe.readline().decode("utf-8", "replace").strip() if ready else "no answer"


_children: list["subprocess.Popen[bytes]"] = []
_children_lock = threading.Lock()


def _reap_later(supervisor: "subprocess.Popen[bytes]") -> None:
    """Remember a child of ours, so that it does not stay a zombie."""
    with _children_lock:
        _children.append(supervisor)


def _reap() -> None:
    """Forget the children that are over."""
    with _children_lock:
        _children[:] = [child for child in _children if child.poll() is None]


def start_mark(pid: int) -> str | None:
    """When the process started, in the kernel's own count: tells it from a later one of its pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def _is_alive(process: Mapping[str, Any]) -> bool:
    return start_mark(process["pid"]) == str(process["mark"])


def wait_for_exit(process: Mapping[str, Any], seconds: float) -> bool:
    """Whether the process is over, `seconds` from now at the latest; it need not be our child."""
    try:
        descriptor = os.pidfd_open(process["pid"])
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _poll_for_exit(process, seconds)
    try:
        if not _is_alive(process):
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(int(seconds * 1000)))
    finally:
        os.close(descriptor)


def _poll_for_exit(process: Mapping[str, Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while _is_alive(process):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _signal_number(name: str) -> int:
    try:
        plain = name.removeprefix("SIG")
        return int(plain) if plain.isdecimal() else int(signal.Signals[f"SIG{plain}"])
    except KeyError:
        raise EngineError(f"invalid signal: {name}", 400) from None
