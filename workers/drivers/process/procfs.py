"""CPU time, health checks and free ports of plain processes."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including reaped ones."""
    ticks, pending = 0, [pid]
    while pending:
        current = pending.pop()
        folder = Path(f"/proc/{current}")
        try:
            stat = (folder / "stat").read_text(encoding="ascii", errors="replace")
            children = [
                int(child)
                for task in (folder / "task").iterdir()
                for child in (task / "children").read_text(encoding="ascii").split()
            ]
        except OSError:  # just ended: its time counts for its parent now, or soon
            continue
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
        pending += children
    return ticks / _TICKS


def run_check(command: Sequence[str], order: Mapping[str, Any], seconds: float) -> str:
    """Return "" if `command` ended with exit status 0 within `seconds`, else the reason."""
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(order["env"]),
            cwd=str(order["cwd"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"not ended within {seconds:g} s"
    return "" if code == 0 else f"exit status {code}"


class Ports:
    """Ports of this machine for tasks to listen on.

    A port is free when it is chosen, but another program may take it before the task listens. Two
    tasks of one cell process never get the same port.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: dict[str, frozenset[int]] = {}

    def choose(self, uid: str, names: Sequence[str]) -> dict[str, int]:
        """Reserve a free port for each name."""
        with self._lock:
            taken = frozenset().union(*self._reserved.values())
            chosen: dict[str, int] = {}
            with contextlib.ExitStack() as open_sockets:
                while len(chosen) < len(names):
                    # Held open until all are chosen: otherwise a port could be chosen twice.
                    port = _free_port(open_sockets)
                    if port not in taken:
                        chosen[names[len(chosen)]] = port
            if chosen:
                self._reserved[uid] = frozenset(chosen.values())
            return chosen

    def forget(self, uid: str) -> None:
        """Release the ports of a task that has ended."""
        with self._lock:
            self._reserved.pop(uid, None)


def _free_port(open_sockets: contextlib.ExitStack) -> int:
    listener = open_sockets.enter_context(socket.socket())
    listener.bind(("", 0))
    return int(listener.getsockname()[1])
