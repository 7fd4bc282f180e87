"""Pass the streams of this process to a program in a task, and return its exit code."""

import json
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from cellrun.errors import ClientError
from cellrun.exec.connection import open_stream
from cellrun.exec.output import OutputWriter
from cellrun.exec.terminal import (
    ended_by_signals,
    forwarded_signals,
    raw_mode,
    size_of_terminal,
)
from cellrun.settings import ClientSettings
from controlplane.contract.exec_frames import (
    CELL_KINDS,
    ExecFrame,
    FrameKind,
    read_exit,
    resize_frame,
)
from controlplane.contract.exec_link import ExecLink, LinkConnection, LinkOver

EXIT_LOST = 255  # as of ssh: the program's own exit code is unknown
BLOCK_BYTES = 32 * 1024
TICK_SECONDS = 1.0
STDIN, STDOUT, STDERR = 0, 1, 2


class SessionLost(ClientError):
    """The session ended without the end of its program."""


class RemoteProgram:
    """One session, seen from the client.

    The main thread receives. Threads of their own send input and events, and write output.
    """

    def __init__(
        self,
        connect: Callable[[int], LinkConnection],
        *,
        has_tty: bool,
        has_stdin: bool,
        descriptors: tuple[int, int, int] = (STDIN, STDOUT, STDERR),
    ) -> None:
        """`connect` takes the position after which frames are wanted."""
        self._has_tty = has_tty
        self._has_stdin = has_stdin
        self._stdin = descriptors[0]
        self._document: dict[str, Any] = {}  # of the session, as web last sent it
        self._events: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._link = ExecLink(
            connect,
            receives=CELL_KINDS,
            now=time.monotonic,
            changed=threading.Condition(),
            sending=threading.Lock(),
        )
        self._output = OutputWriter(
            descriptors[1:], confirm=self._link.confirm, fail=self._link.close
        )

    def run(self) -> tuple[int, str]:
        """Return the exit code, and the reason if the program never ran. Raise SessionLost.

        With a terminal as input, it is raw until the end; without one, Ctrl-C sends SIGINT to the
        program, and a second one raises KeyboardInterrupt.
        """
        is_raw = self._has_tty and self._has_stdin
        with ExitStack() as stack:
            stack.enter_context(ended_by_signals())
            stack.enter_context(forwarded_signals(self._events, interrupts=not is_raw))
            stack.callback(self._link.close)
            if is_raw:
                stack.enter_context(raw_mode(self._stdin))
            if self._has_tty:
                self._events.put(signal.SIGWINCH)
            self._output.start()
            self._start(self._send_events)
            if self._has_stdin:
                self._start(self._send_input)
            return self._receive()

    def _receive(self) -> tuple[int, str]:
        while True:
            try:
                frame = self._link.receive(TICK_SECONDS)
            except LinkOver as over:
                self._output.drain()
                return self._end_of(over)
            match frame:
                case None:
                    continue
                case ExecFrame(FrameKind.STATE):
                    self._document = json.loads(frame.payload)
                case ExecFrame(FrameKind.EXIT):
                    self._output.drain()
                    self._link.confirm(frame.position)
                    return read_exit(frame)
                case _:
                    self._output.put(frame)

    def _end_of(self, over: LinkOver) -> tuple[int, str]:
        """Return the end in the last document, which has it if EXIT was lost. Raise SessionLost."""
        code, reason = self._document.get("exit_code"), str(self._document.get("reason") or "")
        if self._document.get("state") == "ENDED" and isinstance(code, int):
            return code, reason
        raise SessionLost(f"the session is over: {reason or over}")

    def _send_input(self) -> None:
        """Send what is read, in this thread, which may never end."""
        while True:
            try:
                block = os.read(self._stdin, BLOCK_BYTES)
            except BlockingIOError:
                select.select([self._stdin], [], [])
                continue
            except OSError:  # the terminal has gone
                block = b""
            if not block:
                self._link.send(FrameKind.EOF)
                return
            self._link.send(FrameKind.DATA, block)

    def _send_events(self) -> None:
        """Send signals and sizes, which a handler must not do itself."""
        while True:
            number = self._events.get()
            if number == signal.SIGWINCH:
                size = size_of_terminal() if self._has_tty else None
                if size is not None:
                    frame = resize_frame(1, rows=size[0], columns=size[1])
                    self._link.send(frame.kind, frame.payload)
            else:
                self._link.send(FrameKind.SIGNAL, bytes((number,)))

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(LinkOver):
                work()

        threading.Thread(target=run, daemon=True).start()


def attach(settings: ClientSettings, session: str, **options: Any) -> tuple[int, str]:
    """Run a session of the API to its end. Raise SessionLost."""
    return RemoteProgram(lambda after: open_stream(settings, session, after), **options).run()
