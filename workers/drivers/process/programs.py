"""Programs that users start beside a plain process: in its folder, with its environment.

Each has a supervisor (workers.exec.supervisor), which kills it with all of its descendants when it
is closed, or when the cell ends.
"""

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import workers
from workers.exec.program import (
    BLOCK_BYTES,
    NOT_EXECUTABLE,
    NOT_FOUND,
    ExecCommand,
    ExecRefused,
    ProgramEnd,
    ProgramOutput,
)

START_SECONDS = 20.0  # of a supervisor, on a machine under load
POLL_MILLISECONDS = 500  # between checks for `close` while the program reads nothing
END_OF_INPUT = b"\x04"  # what a pseudo-terminal takes for it
UNKNOWN_END = 255
PACKAGES = Path(workers.__file__).parents[1]
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from workers.exec.supervisor import main; sys.exit(main())"
)
OPTIONS = ("-I", "-S", "-X", "utf8", "-c", PROGRAM)  # no site-packages


class ProcessProgram:
    """See ExecProgram in workers.exec.program."""

    def __init__(self, order: Mapping[str, Any], command: ExecCommand, is_over: Callable[[], bool]):
        """Start `command` in the place of `order`, a task's. Raise ExecRefused.

        `is_over` returns whether the task has ended.
        """
        self._is_over = is_over
        self._is_tty = command.tty
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._link, theirs = socket.socketpair()
        self._input = -1
        self._outputs: dict[int, bool] = {}  # whether it is that of errors
        child_ends: list[int] = []
        try:
            streams = self._open_streams(command, child_ends)
            _spawn(theirs.fileno(), streams)
            self._read_start({**order, "argv": list(command.argv), "tty": command.tty})
        except BaseException:
            self.close()
            self._release()
            raise
        finally:
            theirs.close()
            for descriptor in child_ends:
                os.close(descriptor)

    def read(self) -> ProgramOutput | None:
        """Return the next output of both streams."""
        while self._outputs:
            poller = select.poll()
            for descriptor in self._outputs:
                poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll():
                try:
                    block = os.read(descriptor, BLOCK_BYTES)
                except OSError:  # the last process has closed the pseudo-terminal
                    block = b""
                if block:
                    return ProgramOutput(block, self._outputs[descriptor])
                del self._outputs[descriptor]
                with self._lock:
                    if descriptor != self._input:
                        os.close(descriptor)
        return None

    def write(self, content: bytes) -> None:
        """Write to the program's input, as fast as it reads."""
        rest = memoryview(content)
        while rest and not self._is_closed.is_set():
            with self._lock:
                if self._input < 0:
                    return
                try:
                    rest = rest[os.write(self._input, rest) :]
                    continue
                except BlockingIOError:
                    poller = select.poll()
                    poller.register(self._input, select.POLLOUT)
                except OSError:
                    return  # the program has closed its input
            poller.poll(POLL_MILLISECONDS)

    def close_input(self) -> None:
        """Close the pipe; on a pseudo-terminal, type Ctrl-D."""
        if self._is_tty:
            self.write(END_OF_INPUT)
            return
        with self._lock:
            if self._input >= 0:
                os.close(self._input)
                self._input = -1

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; the kernel sends SIGWINCH."""
        with self._lock, contextlib.suppress(OSError):
            if self._is_tty and self._input >= 0:
                fcntl.ioctl(
                    self._input, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
                )

    def signal(self, number: int) -> None:
        """Have the supervisor send the signal."""
        with contextlib.suppress(OSError):
            self._link.sendall(bytes((number,)))

    def end_with_attempt(self) -> None:
        """Kill the program after the end of the task's first process."""
        if not self._is_closed.is_set() and self._is_over():
            self.close()

    def wait(self) -> ProgramEnd:
        """Return the end that the supervisor reports once no descendant is left."""
        message = _read_message(self._link, None)
        self._release()
        if message is None:
            return ProgramEnd(UNKNOWN_END, "the supervisor of the program was killed")
        return ProgramEnd(int(message[1]))

    def close(self) -> None:
        """Have the supervisor kill the program: half of the connection remains for the report."""
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def _open_streams(self, command: ExecCommand, child_ends: list[int]) -> tuple[int, int, int]:
        """Return the child's streams, and keep our ends; add what must be closed here."""
        if command.tty:
            ours, theirs = pty.openpty()
            os.set_blocking(ours, False)
            child_ends.append(theirs)
            self._input, self._outputs = ours, {ours: False}
            return theirs, theirs, theirs
        streams = []
        if command.stdin:
            read_end, self._input = os.pipe()
            os.set_blocking(self._input, False)
            streams.append(read_end)
        else:
            streams.append(os.open(os.devnull, os.O_RDONLY))
        child_ends += streams
        for is_error in (False, True):
            read_end, write_end = os.pipe()
            self._outputs[read_end] = is_error
            streams.append(write_end)
            child_ends.append(write_end)
        return streams[0], streams[1], streams[2]

    def _read_start(self, order: Mapping[str, Any]) -> None:
        """Send the order and read whether the program runs. Raise ExecRefused."""
        try:
            self._link.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise ExecRefused(f"its supervisor does not start: {error}") from error
        message = _read_message(self._link, START_SECONDS)
        if message is None:
            raise ExecRefused("its supervisor does not start")
        if message[0] == "failed":
            code = int(message[1])
            status = NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE
            raise ExecRefused(f"exec {order['argv'][0]!r}: {os.strerror(code).lower()}", status)

    def _release(self) -> None:
        """Close the descriptors."""
        with self._lock:
            for descriptor in {self._input, *self._outputs} - {-1}:
                os.close(descriptor)
            self._input, self._outputs = -1, {}
        self._link.close()


def _spawn(link: int, streams: tuple[int, int, int]) -> None:
    """Start a supervisor, which leaves this process as soon as it runs. Raise ExecRefused."""
    try:
        process = subprocess.Popen(
            [sys.executable, *OPTIONS, str(PACKAGES), str(link)],
            env={},  # the cell's environment contains secrets
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=(link,),
            cwd="/",
        )
        process.wait(START_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecRefused(f"its supervisor does not start: {error}") from error


def _read_message(link: socket.socket, seconds: float | None) -> list[Any] | None:
    """Return the next message of the supervisor; None: it hung up, or sent none in time."""
    link.settimeout(seconds)
    text = b""
    try:
        while not text.endswith(b"\n"):
            byte = link.recv(1)
            if not byte:
                return None
            text += byte
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            link.settimeout(None)
    return list(json.loads(text))
