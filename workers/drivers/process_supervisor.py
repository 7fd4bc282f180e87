"""Runs one task to its end and writes down what became of it, whoever else dies meanwhile.

Started by workers.drivers.process as a program of its own (python -I -S, so only the standard
library), in a session of its own, with the folder of the process as its argument. It says one line
on its output, "running" or why not. Its files:

    order.json   read: argv, env, cwd, memory_bytes, logs, max_log_bytes, cut_note
    begin.json   written when the task runs: at, pids with their start marks
    end.json     written when it and all its children are over: at, code
    claim        locked as long as this program lives (the second argument is its descriptor)

The task dies with its supervisor (PDEATHSIG); its children die with it, those that left its session
too (the supervisor is their reaper).
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import selectors
import signal
import sys
import time

TYPE_CHECKING = False  # as in typing, which takes long to import
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PIPE_BYTES = 65536
NOT_FOUND = 127
NOT_EXECUTABLE = 126
LAST_OUTPUT_SECONDS = 1.0  # for what the killed children had already written
KILLED_SECONDS = 0.005  # between looks whether the killed are gone


def main() -> None:
    """Run the order in the folder named by the first argument."""
    folder = sys.argv[1]
    os.set_inheritable(int(sys.argv[2]), False)
    with open(f"{folder}/order.json", encoding="utf-8") as file:
        order = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    fail_read, fail_write = os.pipe()  # closed by a successful exec; else it carries the errno
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        become_task(order, libc, parent, out_write, err_write, fail_write)
    os.close(out_write)
    os.close(err_write)
    os.close(fail_write)
    failure = os.read(fail_read, 16)
    if failure:
        os.waitpid(pid, 0)
        say(f"exec {order['argv'][0]!r}: {os.strerror(int(failure)).lower()}")
        sys.exit(1)
    begin = {"at": now(), "task": mark(pid), "supervisor": mark(parent)}
    write_whole(f"{folder}/begin.json", begin)
    say("running")
    logs = [Log(order, "stdout", out_read), Log(order, "stderr", err_read)]
    code = copy_until_exit(pid, logs)
    kill_what_is_left(pid)
    copy_rest(logs)
    write_whole(f"{folder}/end.json", {"at": now(), "code": code})


def now() -> float:
    """Seconds since 1970; this program cannot import the cell's clock."""
    return time.time()  # noqa: TID251


def become_task(
    order: "dict[str, Any]",
    libc: ctypes.CDLL,
    parent: int,
    out_write: int,
    err_write: int,
    fail_write: int,
) -> None:
    """In the child: turn into the task; never returns."""
    try:
        os.setsid()
        if hasattr(libc, "prctl"):
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(out_write, 1)
        os.dup2(err_write, 2)
        os.chdir(order["cwd"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(fail_write, str(error.errno).encode())
    except BaseException:
        os.write(fail_write, str(errno.EINVAL).encode())
    os._exit(NOT_FOUND)


class Log:
    """One stream of the task, copied to its file up to the limit."""

    def __init__(self, order: "dict[str, Any]", name: str, descriptor: int) -> None:
        os.makedirs(order["logs"], exist_ok=True)
        self.descriptor = descriptor
        self.file = os.open(
            f"{order['logs']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self.room = order["max_log_bytes"]
        self.cut_note = order["cut_note"].encode()
        self.is_cut = False
        os.set_blocking(descriptor, False)

    def copy(self) -> bool:
        """Copy what is there; False at the end of the stream."""
        try:
            block = os.read(self.descriptor, PIPE_BYTES)
        except BlockingIOError:
            return True
        if not block:
            return False
        if not self.is_cut:
            kept = block[: self.room]
            self.room -= len(kept)
            if len(kept) < len(block):
                self.is_cut = True
                kept += self.cut_note
            try:
                os.write(self.file, kept)
            except OSError:
                self.is_cut = True  # a full disk must not stop the task
        return True


def copy_until_exit(pid: int, logs: list[Log]) -> int:
    """Copy output until the task's first process is over; its exit code, as a shell says it."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    selector = selectors.DefaultSelector()
    selector.register(wake_read, selectors.EVENT_READ)
    for log in logs:
        selector.register(log.descriptor, selectors.EVENT_READ, log)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        for key, _ in selector.select():
            if key.data is None:
                os.read(wake_read, 1024)
            elif not key.data.copy():
                selector.unregister(key.data.descriptor)


def copy_rest(logs: list[Log]) -> None:
    """Copy what was written before the end; somebody who fled with the pipe is not waited for."""
    end = time.monotonic() + LAST_OUTPUT_SECONDS
    selector = selectors.DefaultSelector()
    for log in logs:
        selector.register(log.descriptor, selectors.EVENT_READ, log)
    while selector.get_map() and time.monotonic() < end:
        for key, _ in selector.select(end - time.monotonic()):
            if not key.data.copy():
                selector.unregister(key.data.descriptor)


def kill_what_is_left(session: int) -> None:
    """Kill the task's session, then all that fell to us as their reaper, until there is nobody."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    while True:
        for child in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(KILLED_SECONDS)


def children() -> list[int]:
    """Our children, adopted ones too."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def mark(pid: int) -> dict[str, object]:
    """The pid with the moment of its start, in the kernel's own count."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return {"pid": pid, "mark": file.read().rpartition(")")[2].split()[19]}
    except OSError:
        return {"pid": pid, "mark": None}


def write_whole(path: str, body: dict[str, object]) -> None:
    """Write a JSON file that is there as a whole or not at all."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(body, file)
    os.replace(f"{path}.new", path)


def say(line: str) -> None:
    """One line to whoever started us; it may be gone by now."""
    with contextlib.suppress(OSError):
        os.write(1, line.encode() + b"\n")
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
