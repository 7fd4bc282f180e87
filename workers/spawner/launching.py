"""Start a task: in a session of its own, under its limits, with its output in pipes."""

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
from functools import cache, lru_cache
from typing import Any

POSIX_SPAWN_BYTES = 2**26  # address space limits from here on suffice for posix_spawn
IGNORED_BY_PYTHON = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
)  # by Python, and so by every process that inherits it


Streams = tuple[int, int, int]  # descriptors of standard input, output and error


def spawn(order: dict[str, Any], out: int, err: int) -> int:
    """Start the task in a session of its own; return its pid. Raise OSError, ValueError."""
    if order.get("stdin") is None:
        return spawn_limited(order, (dev_null(), out, err))
    stdin = os.open(order["stdin"], os.O_RDONLY)
    try:
        return spawn_limited(order, (stdin, out, err))
    finally:
        os.close(stdin)


def spawn_limited(order: dict[str, Any], streams: Streams) -> int:
    """Start the task under its memory limit."""
    memory = order["memory_bytes"]
    if not memory:
        return spawn_by_vfork(order, streams)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        # No Python code can run in the child between vfork and exec, so it must inherit its limit.
        # fork, which copies page tables, takes 0.55 ms instead of 0.2 ms.
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
        pid = spawn_by_vfork(order, streams)
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        pid = spawn_by_fork(order, streams)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    with contextlib.suppress(OSError):  # it has ended, or runs as another user
        resource.prlimit(pid, resource.RLIMIT_AS, (memory, memory))
    return pid


def spawn_by_vfork(order: dict[str, Any], streams: Streams) -> int:
    """Start a program by vfork. All descriptors of the spawner close at exec."""
    executable = find_program(order["argv"][0], order["env"].get("PATH"))
    if executable is not None:
        with contextlib.suppress(FileNotFoundError):  # it has moved since
            return spawn_program(order, streams, executable)
        find_program.cache_clear()
    return spawn_program(order, streams, None)


@lru_cache(maxsize=256)
def find_program(name: str, path: str | None) -> str | None:
    """Return the path found first: searching a long PATH takes longer than a start."""
    found = None if "/" in name or path is None else shutil.which(name, path=path)
    return found if found is not None and found.startswith("/") else None


def spawn_program(order: dict[str, Any], streams: Streams, executable: str | None) -> int:
    """Start the program `executable`; None: search argv[0] in PATH."""
    if executable is None and "/" in order["argv"][0]:
        executable = order["argv"][0]
    if executable is not None and not 0 < order["memory_bytes"] < POSIX_SPAWN_BYTES:
        return spawn_file(order, streams, executable)
    process = subprocess.Popen(
        order["argv"],
        executable=executable,
        env=order["env"],
        cwd=order["cwd"],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        start_new_session=True,
        close_fds=False,
    )
    process.returncode = 0  # the spawner reaps it, not subprocess
    return process.pid


def spawn_file(order: dict[str, Any], streams: Streams, executable: str) -> int:
    """Start the program by posix_spawn, from the task's folder, which the child inherits."""
    previous = os.open(".", os.O_PATH)
    try:
        os.chdir(order["cwd"])
        return os.posix_spawn(
            executable,
            order["argv"],
            order["env"],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)
            ],
            setsid=True,
            setsigdef=IGNORED_BY_PYTHON,
        )
    finally:
        os.fchdir(previous)
        os.close(previous)


@cache
def dev_null() -> int:
    """Return a descriptor of /dev/null for standard inputs."""
    return os.open("/dev/null", os.O_RDONLY)


def spawn_by_fork(order: dict[str, Any], streams: Streams) -> int:
    """Start the program by fork: its memory limit is smaller than the spawner's own usage."""
    fail_read, fail_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        exec_task(order, streams, fail_write)
    os.close(fail_write)
    failure = os.read(fail_read, 16)
    os.close(fail_read)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def exec_task(order: dict[str, Any], streams: Streams, fail_write: int) -> None:
    """Set up the child process and execute the task in it; never return."""
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(order["cwd"])
        resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(fail_write, str(error.errno).encode())
    except BaseException:
        os.write(fail_write, str(errno.EINVAL).encode())
    os._exit(127)
