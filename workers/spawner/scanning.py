"""Read /proc: find the task of each process, and kill processes of an earlier spawner."""

import contextlib
import os
import signal
import time

from workers.spawner.task import SpawnedTask

KILLED_SECONDS = 0.01  # between polls until killed processes are gone
MARKER = (
    b"CELLRUN_ROOT="  # in the environment of each task: identifies processes that left the session
)


def inspect_process(pid: int) -> tuple[int, int] | None:
    """Return the session and the start mark of a process; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[3]), int(fields[19]))


def mark_of(pid: int) -> int:
    """Return the start mark of a child that was not reaped yet."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def root_of(pid: int) -> bytes:
    """Return the task's root from the environment of a process; empty: none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(MARKER):
                    return entry[len(MARKER) :]
    except OSError:
        pass
    return b""


def children() -> list[int]:
    """Return the spawner's children, including those reparented to it as subreaper."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def kill(pid: int, *, group: bool = False) -> None:
    """Send SIGKILL to a process or its group, if it exists."""
    with contextlib.suppress(OSError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def end_left_behind(tasks: dict[str, SpawnedTask], work: str, *, is_same_boot: bool) -> None:
    """Kill all processes of tasks of a killed spawner; return when none is left."""
    sessions = {task.pid: task.mark for task in tasks.values() if is_same_boot and task.pid}
    roots = os.fsencode(work) + b"/"
    has_processes = True
    while has_processes:
        has_processes = False
        for name in os.listdir("/proc"):
            seen = inspect_process(int(name)) if name.isdigit() else None
            if seen is None:
                continue
            # The kernel does not reuse a session id while a process is in the session. So every
            # process in a task's session belongs to the task, and its own mark needs no check.
            session = seen[0]
            leader = inspect_process(session)
            is_ours = session in sessions and (leader is None or leader[1] == sessions[session])
            if is_ours or root_of(int(name)).startswith(roots):
                has_processes = True
                kill(int(name))
        if has_processes:
            time.sleep(KILLED_SECONDS)
