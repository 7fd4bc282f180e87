"""Tasks as plain processes of this machine: no image and NO ISOLATION, only separate folders.

A task has access to the whole machine, as the user of the cell. `user`, `network`, `read_only` and
`max_pids` are not enforced, cpu is not limited, and memory only by address space (RLIMIT_AS). All
paths of a task are below CELLRUN_ROOT, a folder of the attempt, where it also starts. Variables
show it its GPUs only, which a task can change.

One spawner (workers.spawner) for the cell starts all tasks and outlives the cell: it records starts
and ends, so that a new cell process gets the real exit status.
"""

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workers.attempt.capture import cut_note
from workers.attempt.environment import port_variable
from workers.attempt.events import FoundContainer, Launch
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    CreateResult,
    EngineAway,
    EngineError,
    NoSuchContainer,
    PlacedFile,
    ResourceUsage,
    container_name,
)
from workers.drivers.gpus import gpu_variables
from workers.drivers.paths import FolderEngine
from workers.drivers.process.gpu_records import GpuRecords
from workers.drivers.process.procfs import Ports, cpu_seconds_of, run_check
from workers.drivers.process.programs import ProcessProgram
from workers.drivers.process.spawner_client import RequestPending, SpawnerLink
from workers.exec.program import ExecCommand
from workers.spawner.scanning import inspect_process

# The only variables of the cell's environment that a task gets: the others include secrets.
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")


class ProcessEngine(FolderEngine):
    """An Engine (workers.attempt.runtime) whose "containers" are a folder and a process each."""

    name = "process"

    def __init__(self, *, home: Path, max_log_bytes: int, gpus: int = 0) -> None:
        """Create the engine. `gpus`: their count; they are numbered from 0."""
        super().__init__(home)
        self._logs = home.absolute() / "logs"
        self._max_log_bytes = max_log_bytes
        self._ports = Ports()
        self._passed_env = {
            name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ
        }
        self._link = SpawnerLink(home)
        self._gpus = GpuRecords(home.absolute() / "gpus", gpus, self._is_holder)

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """Write the order file: what the spawner is to run."""
        order_path = self._order_path(launch.uid)
        is_new = read_whole(order_path) is None
        if is_new:
            root = self.root(launch.uid)
            workdir = root / (launch.spec.workdir or "/").strip("/")
            if ".." in (launch.spec.workdir or "").split("/"):
                raise EngineError("working directory: .. is not allowed", 400)
            if not (launch.spec.entrypoint or ()) + launch.spec.command:
                raise EngineError("no command specified", 400)
            workdir.mkdir(parents=True, exist_ok=True)
            with self._gpus.reserve(launch.uid, launch.spec.resources.get("gpu", 0)) as gpus:
                order = self._order(launch, str(root), str(workdir), gpus)
                # A partial file of a killed process is not valid JSON, and is written again.
                with open(order_path, "w", encoding="utf-8") as file:
                    file.write(json.dumps(order))
        return CreateResult(container_name(launch.uid), is_new)

    @property
    def link(self) -> SpawnerLink:
        """The connection to the spawner."""
        return self._link

    def plain_order(self, launch: Launch) -> dict[str, Any]:
        """Return the order of a task without files and GPUs: the spawner creates its folder."""
        root = f"{self._work}/{launch.uid}/root"
        return self._order(launch, root, root, ())

    def _order(
        self, launch: Launch, root: str, workdir: str, gpus: Sequence[int]
    ) -> dict[str, Any]:
        spec = launch.spec
        ports = self._ports.choose(launch.uid, spec.ports)
        port_env = {port_variable(name): str(port) for name, port in ports.items()}
        return {
            "argv": [*(spec.entrypoint or ()), *spec.command],
            "env": {
                **self._passed_env,
                **spec.env,
                **launch.env,
                **port_env,
                **gpu_variables(gpus),
                "CELLRUN_ROOT": root,
            },
            "ports": ports,
            "cwd": workdir,
            "root": root,
            "stdin": None if spec.stdin is None else f"{root}{spec.stdin}",
            "memory_bytes": spec.resources.get("memory_mib", 0) * 2**20,
            "logs": f"{self._logs}/{launch.uid}",
            "max_log_bytes": self._max_log_bytes,
            "cut_note": cut_note(self._max_log_bytes).decode(),
        }

    def start(self, uid: str) -> None:
        """Have the spawner start the process, once; raise EngineError at a second call."""
        word, *words = self._link.call("run", uid)
        match word:
            case "running":
                return
            case "again":
                raise EngineError("it was started before")
            case "gone":
                raise NoSuchContainer("there is no such process")
            case "exec":
                raise EngineError(words[0], 400)
            case _:
                raise EngineError(f"it could not be started: {words[0]}")

    def view(self, uid: str) -> ContainerView | None:
        """Return the state of the process as the spawner last reported it."""
        task = self._link.find(uid)
        name = container_name(uid)
        if task is None:
            return (
                ContainerView(ContainerStatus.CREATED, name)
                if os.path.exists(self._order_path(uid))
                else None
            )
        if not task.is_over:
            return ContainerView(
                ContainerStatus.RUNNING, name, started_at=task.began_at, pid=task.pid
            )
        # Without a code, its spawner was killed, and the next spawner killed the process.
        use = None
        if task.code is not None:
            use = ResourceUsage(task.cpu_seconds, memory_peak_bytes=task.peak_bytes or None)
        return ContainerView(
            ContainerStatus.ENDED,
            name,
            task.code,
            started_at=task.began_at,
            ended_at=task.ended_at,
            use=use,
        )

    def wait(self, uid: str, seconds: float) -> bool:
        """Wait until the spawner reports the end, or hangs up."""
        task = self._link.find(uid)
        return task is None or task.is_over or task.news.wait(seconds)

    def signal(self, uid: str, name: str) -> bool:
        """Send a signal to the task's first process; after its end the spawner kills the others."""
        number = _signal_number(name)
        task = self._link.find(uid)
        if task is None or task.is_over:
            return False
        try:
            # A descriptor refers to this process, never to a later one of the same pid. The spawner
            # could not send the signal while it is stopped.
            descriptor = os.pidfd_open(task.pid)
            try:
                seen = inspect_process(task.pid)
                if seen is None or seen[1] != task.mark:
                    return False
                signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise EngineError(str(error)) from error
        return True

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """Return the ports chosen for the task, which shares the network of this machine."""
        order = read_whole(self._order_path(launch.uid))
        if order is None:
            raise NoSuchContainer("there is no such process")
        return dict(order.get("ports") or {})

    def use(self, uid: str) -> ResourceUsage:
        """Return the CPU time of its processes and their children; sent bytes are unknown."""
        pids = self._link.call("pids", uid)[1:]
        if not pids:
            raise NoSuchContainer("the process is over")
        return ResourceUsage(sum(cpu_seconds_of(pid) for pid in pids))

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Run a command with the task's environment, in its folder."""
        order = read_whole(self._order_path(launch.uid))
        if order is None:
            raise NoSuchContainer("there is no such process")
        return run_check(command, order, seconds)

    def execute(self, launch: Launch, command: ExecCommand) -> ProcessProgram:
        """Start a program with the task's environment, in its folder, until the task ends."""
        uid = launch.uid
        task = self._link.find(uid)
        if task is None or task.is_over:
            raise NoSuchContainer("the process is over")
        order = read_whole(self._order_path(uid)) or self.plain_order(launch)
        return ProcessProgram(order, command, partial(self._has_ended, uid))

    def end_programs(self, uid: str) -> None:
        """Do nothing: the supervisor of a program has ended it together with the cell."""

    def _has_ended(self, uid: str) -> bool:
        """Return whether the task has ended, as far as is known."""
        try:
            task = self._link.find(uid)
        except EngineAway:
            return False
        return task is None or task.is_over

    def remove(self, uid: str) -> None:
        """Kill the process if it runs, and forget it."""
        # Without the order file, a pending start fails.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._order_path(uid))
        task = self._link.find(uid)
        if task is not None and task.is_over:
            self._link.forget(uid)
        else:
            try:
                self._link.call("remove", uid)
            except RequestPending as error:
                raise EngineError("the process does not end") from error
        self._ports.forget(uid)
        self._gpus.release(uid)

    def find(self) -> Iterable[FoundContainer]:
        """Return the attempts that the spawner has reported, and those with an order file."""
        found = {uid: not task.is_over for uid, task in self._link.known()}
        for order in self._work.glob("*/order.json"):
            found.setdefault(order.parent.name, False)
        for uid, is_running in found.items():
            yield FoundContainer(uid, is_running, container_name(uid))

    def close(self) -> None:
        """Close the connection; tasks continue to run under the spawner."""
        self._link.close()

    def _is_holder(self, uid: str) -> bool:
        """Return whether the attempt's process runs or may still be started."""
        task = self._link.find(uid)
        return os.path.exists(self._order_path(uid)) if task is None else not task.is_over

    def _order_path(self, uid: str) -> str:
        return f"{self._work}/{uid}/order.json"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_whole(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it does not exist or is incomplete."""
    try:
        return dict(json.loads(_read(path)))
    except (OSError, ValueError):
        return None


def _signal_number(name: str) -> int:
    try:
        plain = name.removeprefix("SIG")
        return int(plain) if plain.isdecimal() else int(signal.Signals[f"SIG{plain}"])
    except KeyError:
        raise EngineError(f"invalid signal: {name}", 400) from None
