"""Run one program below a plain process, and kill everything that it leaves behind.

A separate process with the standard library only, started by workers.drivers.process.programs,
because Python code between fork and exec of a process with threads may hang. Argument: the number
of a socket to the cell.

* From the cell: the order as one line of JSON (argv, env, cwd, memory_bytes, tty), then one byte
  for each signal to the program's group. At the end of the connection, also by a kill of the cell,
  the program and its descendants are killed.
* To the cell, lines of JSON: ["failed", errno] if the program cannot be executed, else
  ["started", pid], and ["ended", exit code] once all descendants have ended too.

The supervisor leaves its parent, so that a cell that replaced its process need not reap it.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import termios
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_MILLISECONDS = 10  # between polls until killed processes are gone
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> int:
    """Start the program, pass on signals, and report its end."""
    if os.fork():
        os._exit(0)
    os.setsid()
    cell = socket.socket(fileno=int(sys.argv[1]))
    cell.set_inheritable(False)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    order = read_order(cell)
    if order is None:
        return 0
    pid, failure = start(order)
    if failure:
        report(cell, ["failed", failure])
        return 0
    report(cell, ["started", pid])
    null = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    code = supervise(pid, cell, wake_read)
    kill_descendants(pid)
    report(cell, ["ended", code])
    return 0


def read_order(cell: socket.socket) -> dict[str, Any] | None:
    """Return the order; None: the cell has ended."""
    text = b""
    while not text.endswith(b"\n"):
        block = cell.recv(65536)
        if not block:
            return None
        text += block
    return dict(json.loads(text))


def report(cell: socket.socket, message: list[Any]) -> None:
    """Send a message, unless the cell has ended."""
    with contextlib.suppress(OSError):
        cell.sendall(json.dumps(message).encode() + b"\n")


def start(order: dict[str, Any]) -> tuple[int, int]:
    """Start the program; return its pid, and the error number if it could not be executed."""
    fail_read, fail_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        execute(order, fail_write)
    os.close(fail_write)
    failure = os.read(fail_read, 16)
    os.close(fail_read)
    if failure:
        os.waitpid(pid, 0)
        return 0, int(failure)
    return pid, 0


def execute(order: dict[str, Any], fail_write: int) -> None:
    """Set up the child process and execute the program in it; never return."""
    try:
        # A program that kills its supervisor ends as well.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if order["tty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.set_wakeup_fd(-1)
        defaults = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        for number in (*defaults, *IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["cwd"])
        if order["memory_bytes"]:
            resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(fail_write, str(error.errno).encode())
    except BaseException:
        os.write(fail_write, str(errno.EINVAL).encode())
    os._exit(127)


def supervise(pid: int, cell: socket.socket, wake: int) -> int:
    """Return the exit code of the program; kill its group when the cell hangs up."""
    poller = select.poll()
    poller.register(cell, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        code = reap(pid)
        if code is not None:
            return code
        for descriptor, _ in poller.poll():
            if descriptor == wake:
                os.read(wake, 64)
                continue
            try:
                block = cell.recv(64)
            except OSError:
                block = b""
            if not block:
                poller.unregister(cell)
                send(pid, signal.SIGKILL)
            for number in block:
                send(pid, number)


def send(pid: int, number: int) -> None:
    """Send a signal to the program's group, which exists until the program is reaped."""
    with contextlib.suppress(OSError, ValueError):
        os.killpg(pid, number)


def reap(pid: int) -> int | None:
    """Reap ended children; return the exit code of the program once it has ended."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == pid:
                found = os.waitstatus_to_exitcode(status)
                code = 128 - found if found < 0 else found
    return code


def kill_descendants(pid: int) -> None:
    """Kill what the program left behind: as subreaper this process is the parent of all of it."""
    pause = select.poll()
    while found := children():
        for child in found:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        pause.poll(POLL_MILLISECONDS)
        reap(pid)


def children() -> list[int]:
    """Return the children of this process."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())
