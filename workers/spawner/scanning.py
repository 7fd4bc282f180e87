"""Read /proc: the owner of each process, and what is left of unwatched tasks."""

import contextlib
import os
import signal
import time

from workers.spawner.task import SpawnedTask

KILLED_SECONDS = 0.01  # between checks whether the killed processes are gone
MARKER = (
    b"CELLRUN_ROOT="  # in the environment of each task: identifies processes that left the session
)


def inspect_process(pid: int) -> tuple[int, int] | None:
    """The session of a process and the mark of its start; None: there is none any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[3]), int(fields[19]))


def mark_of(pid: int) -> int:
    """The mark of a child that was not waited for."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def root_of(pid: int) -> bytes:
    """The task's root that stands in the environment of a process; empty: none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(MARKER):
                    return entry[len(MARKER) :]
    except OSError:
        pass
    return b""


def children() -> list[int]:
    """Our children, those that fell to us as their reaper too."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def kill(pid: int, *, group: bool = False) -> None:
    """SIGKILL, to a process or its group, if it is there."""
    with contextlib.suppress(OSError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def end_left_behind(tasks: dict[str, SpawnedTask], work: str, *, is_same_boot: bool) -> None:
    """End what tasks of a spawner that was killed have left; returns when nothing is there."""
    sessions = {task.pid: task.mark for task in tasks.values() if is_same_boot and task.pid}
    roots = os.fsencode(work) + b"/"
    left = True
    while left:
        left = False
        for name in os.listdir("/proc"):
            seen = inspect_process(int(name)) if name.isdigit() else None
            if seen is None:
                continue
            # The kernel reuses no session number while a process is in it: every process in a
            # session of a task began after its leader, so that its marks need no check.
            session = seen[0]
            leader = inspect_process(session)
            is_ours = session in sessions and (leader is None or leader[1] == sessions[session])
            if is_ours or root_of(int(name)).startswith(roots):
                left = True
                kill(int(name))
        if left:
            time.sleep(KILLED_SECONDS)
