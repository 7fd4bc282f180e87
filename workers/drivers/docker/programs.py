"""Programs that users start in a container, by the exec calls of the Engine API.

The engine cannot send signals to such a program. It reports its process id, so the cell sends them
itself, if it runs on the engine's machine with the right to do so. Elsewhere a program that ignores
the end of its input continues until its container ends.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any

from workers.attempt.runtime import EngineAway, EngineError
from workers.drivers.docker.connection import translated_errors
from workers.exec.program import (
    BLOCK_BYTES,
    NOT_EXECUTABLE,
    NOT_FOUND,
    ExecCommand,
    ExecRefused,
    ProgramEnd,
    ProgramOutput,
)

HEADER = struct.Struct(">BxxxL")  # of a frame of output: the stream, and the size
STDERR = 2
END_OF_INPUT = b"\x04"  # what a pseudo-terminal takes for it
# The engine takes a sequence of keys for an order to detach, and delays the first of them. Its
# default, Ctrl-P Ctrl-Q, is used by shells.
DETACH_KEYS = "ctrl-],ctrl-^,ctrl-],ctrl-^,ctrl-]"
SHOWN_DETACH_KEYS = "HR4dHh0="  # as the engine describes them
RESIZE_TRIES, RESIZE_PAUSE_SECONDS = 50, 0.02  # until the program has started
END_PAUSE_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2)  # between polls; the last value repeats
END_SECONDS = 10.0  # for the engine to record the end of a program whose output has ended
UNKNOWN_END = 255


class ContainerProgram:
    """See ExecProgram in workers.exec.program."""

    def __init__(self, api: Any, container: str, command: ExecCommand) -> None:
        """Start `command` in a running container. Raise EngineAway, EngineError, ExecRefused."""
        self._api = api
        self._container = container
        self._is_tty = command.tty
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._refusal = b""
        self._rest = 0  # bytes of the current frame that are not read yet
        self._is_error = False
        self._has_begun = False
        with translated_errors():
            self._id = str(
                api.exec_create(
                    container,
                    list(command.argv),
                    stdin=command.stdin,
                    tty=command.tty,
                    detach_keys=DETACH_KEYS,
                )["Id"]
            )
            self._response = api._post_json(
                api._url("/exec/{0}/start", self._id),
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                data={"Tty": command.tty, "Detach": False},
                stream=True,
            )
            api._raise_for_status(self._response)
        # The reader may have the first output already, behind the head of the response.
        self._reader = self._response.raw._fp.fp
        self._socket: socket.socket = self._reader.raw._sock
        self._socket.settimeout(None)

    def read(self) -> ProgramOutput | None:
        """Return the next output; both streams have frames, unless there is a pseudo-terminal."""
        while (block := self._read_block()) is not None:
            if not self._has_begun:
                self._has_begun = True
                if block.content.startswith(b"OCI runtime exec failed"):
                    self._refusal = block.content
                    continue
            return block
        return None

    def write(self, content: bytes) -> None:
        """Send input, as fast as the program reads."""
        with contextlib.suppress(OSError):
            self._socket.sendall(content)

    def close_input(self) -> None:
        """End this direction of the connection; on a pseudo-terminal, type Ctrl-D."""
        if self._is_tty:
            self.write(END_OF_INPUT)
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size, which the engine refuses until the program has started."""
        if not self._is_tty:
            return
        for _ in range(RESIZE_TRIES):
            try:
                with translated_errors():
                    self._api.exec_resize(self._id, height=rows, width=columns)
                return
            except EngineAway:
                return
            except EngineError:
                if self._is_closed.wait(RESIZE_PAUSE_SECONDS) or not self._may_run():
                    return

    def signal(self, number: int) -> None:
        """Send the signal to the program's group, if this machine runs it."""
        pid = self._pid()
        if pid:
            signal_group(pid, number, self._container)

    def end_with_attempt(self) -> None:
        """Do nothing: the end of the container ends all programs in it."""

    def wait(self) -> ProgramEnd:
        """Return the exit code that the engine recorded."""
        end = time.monotonic() + END_SECONDS
        tries = 0
        found: dict[str, Any] = {}
        while True:
            try:
                with translated_errors():
                    found = self._api.exec_inspect(self._id)
                if not found.get("Running") and (
                    self._refusal or found.get("ExitCode") is not None
                ):
                    break
                if self._is_closed.is_set():  # `close` may have preceded the program's start
                    self._kill_session(found)
            except (EngineAway, EngineError) as error:
                self._response.close()
                return ProgramEnd(UNKNOWN_END, f"its end is unknown: {error}")
            if time.monotonic() > end:
                self._response.close()
                return ProgramEnd(UNKNOWN_END, "the engine has not recorded its end")
            pause = END_PAUSE_SECONDS[min(tries, len(END_PAUSE_SECONDS) - 1)]
            if self._is_closed.wait(pause):
                time.sleep(pause)
            tries += 1
        self._response.close()
        self._kill_session(found)  # what it has left behind
        if self._refusal:
            text = self._refusal.decode(errors="replace").strip()
            return ProgramEnd(_code_of(text), text)
        return ProgramEnd(int(found["ExitCode"]))

    def close(self) -> None:
        """Kill the program and its session, and end the connection."""
        self._is_closed.set()
        with contextlib.suppress(EngineAway, EngineError):
            self.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read_block(self) -> ProgramOutput | None:
        try:
            if self._is_tty:
                content = self._reader.read1(BLOCK_BYTES)
                return ProgramOutput(content) if content else None
            while not self._rest:
                head = self._reader.read(HEADER.size)
                if len(head) < HEADER.size:
                    return None
                stream, self._rest = HEADER.unpack(head)
                self._is_error = stream == STDERR
            content = self._reader.read1(min(self._rest, BLOCK_BYTES))
        except (OSError, ValueError):
            return None
        self._rest -= len(content)
        return ProgramOutput(content, self._is_error) if content else None

    def _kill_session(self, found: Mapping[str, Any]) -> None:
        """Kill the processes of the inspected program, running or ended."""
        if pid := int(found.get("Pid") or 0):
            signal_group(pid, signal.SIGKILL, self._container)

    def _may_run(self) -> bool:
        """Return whether the program has not ended, as far as the engine reports."""
        try:
            with translated_errors():
                found = self._api.exec_inspect(self._id)
        except (EngineAway, EngineError):
            return False
        return found.get("ExitCode") is None

    def _pid(self) -> int:
        """Return the process id that the engine reports for the running program, or 0."""
        with translated_errors():
            found = self._api.exec_inspect(self._id)
        return int(found.get("Pid") or 0) if found.get("Running") else 0


def start_program(api: Any, container: str, command: ExecCommand) -> ContainerProgram:
    """Start a program in a container. Raise ExecRefused with the engine's own words."""
    try:
        return ContainerProgram(api, container, command)
    except (EngineAway, EngineError) as error:
        raise ExecRefused(str(error), _code_of(str(error))) from error


def end_programs(api: Any, body: Mapping[str, Any]) -> None:
    """Kill the programs that an earlier process started, in an inspected container.

    The keys to detach distinguish them from health checks, and from `docker exec`.
    """
    for exec_id in body.get("ExecIDs") or ():
        with contextlib.suppress(EngineAway, EngineError), translated_errors():
            found = api.exec_inspect(exec_id)
            is_ours = found.get("DetachKeys") == SHOWN_DETACH_KEYS
            if is_ours and found.get("Running") and found.get("Pid"):
                signal_group(int(found["Pid"]), signal.SIGKILL, str(body["Id"]))


def _code_of(refusal: str) -> int:
    is_missing = "executable file not found" in refusal or "no such file" in refusal
    return NOT_FOUND if is_missing else NOT_EXECUTABLE


def signal_group(pid: int, number: int, container: str) -> bool:
    """Send a signal to the processes of the session of `pid`, if they are in `container`.

    A process id of the engine may be that of another process here, if the engine runs elsewhere, or
    the cell in a container of its own. SIGINT and others that a terminal sends reach only the group
    of `pid`.
    """
    is_found = False
    whole_session = number in (signal.SIGKILL, signal.SIGHUP)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        member = int(name)
        try:
            descriptor = os.pidfd_open(member)
        except OSError:
            continue
        try:
            group, session = _group_and_session(member)
            if pid == (session if whole_session else group) and _is_in(member, container):
                signal.pidfd_send_signal(descriptor, number)
                is_found = True
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return is_found


def _group_and_session(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[2]), int(fields[3])


def _is_in(pid: int, container: str) -> bool:
    """Return whether a process is in a container, by the name of its control group."""
    with open(f"/proc/{pid}/cgroup", "rb") as file:
        return container.encode() in file.read()
