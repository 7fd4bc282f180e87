"""One session: claim it at web, start its program, and pass frames both ways until both end."""

import math
import queue
import signal
import threading
import time
from collections.abc import Callable

from structlog.stdlib import BoundLogger

from controlplane.contract.exec_frames import (
    CLIENT_KINDS,
    MAX_UNCONFIRMED_BYTES,
    ExecFrame,
    FrameKind,
    exit_frame,
    read_size,
)
from controlplane.contract.exec_link import (
    RECONNECT_SECONDS,
    ExecLink,
    LinkConnection,
    LinkOver,
)
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused

TICK_SECONDS = 0.25  # between checks for the end of the attempt, or of the cell
HANGUP_SECONDS = 5.0  # from SIGHUP to SIGKILL, when a session ends before its program
CLOSING_SECONDS = 1.0  # the same when the cell ends
JOIN_SECONDS = 5.0

Execute = Callable[[ExecCommand], ExecProgram]


class CellSession:
    """Runs in a thread of its own; two more threads pass on output and input."""

    def __init__(
        self,
        command: ExecCommand,
        connect: Callable[[int], LinkConnection],
        execute: Execute,
        log: BoundLogger,
        *,
        refusal: str = "",
        claim_seconds: float = RECONNECT_SECONDS,
        size: tuple[int, int] = (0, 0),
        closing: threading.Event,
    ) -> None:
        """`connect` takes the position after which frames are wanted.

        `refusal`: why no program is started, empty if one is. `claim_seconds`: the time in which
        the session must be claimed. `size`: rows and columns at the beginning; 0: not known.
        `closing`: set when the cell ends.
        """
        self._command = command
        self._execute = execute
        self._log = log
        self._refusal = refusal
        self._size = size
        self._closing = closing
        self._claim_until = time.monotonic() + claim_seconds
        self._link = ExecLink(
            connect,
            receives=CLIENT_KINDS,
            now=time.monotonic,
            changed=threading.Condition(),
            sending=threading.Lock(),
        )
        self._frames: queue.SimpleQueue[ExecFrame | None] = queue.SimpleQueue()
        self._early: list[ExecFrame] = []  # received before the program has started
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._is_output_over = threading.Event()

    def run(self) -> None:
        """Serve the session to its end. Raises nothing."""
        program: ExecProgram | None = None
        threads: list[threading.Thread] = []
        try:
            if not self._claim():
                return
            program = self._start()
            if program is not None:
                threads = [
                    self._thread("output", self._pass_output, program),
                    self._thread("input", self._pass_input, program),
                ]
            self._serve(program)
            self._settle()
        except LinkOver as over:
            self._log.info("exec_ended_early", why=str(over))
            if program is not None:
                self._hang_up(program)
        except Exception:  # a hostile answer must not end the cell
            self._log.exception("exec_failed")
        finally:
            if program is not None:
                program.close()
            self._frames.put(None)
            self._link.close()
            for thread in threads:
                thread.join(JOIN_SECONDS)

    def _claim(self) -> bool:
        """Connect, which claims the session; return whether web has confirmed the claim in time."""
        while not self._link.is_claimed:
            if self._closing.is_set() or time.monotonic() > self._claim_until:
                return False
            frame = self._link.receive(TICK_SECONDS)
            if frame is not None:
                self._early.append(frame)
        return True

    def _start(self) -> ExecProgram | None:
        """Start the program; None: the end is reported already."""
        reason, code = self._refusal, ExecRefused("").code
        if not reason:
            try:
                program = self._execute(self._command)
                self._log.info("exec_started")
                if self._command.tty and all(self._size):
                    program.resize(*self._size)
                return program
            except ExecRefused as refused:
                reason, code = str(refused), refused.code
            except Exception as error:
                self._log.exception("exec_not_started")
                reason = f"{type(error).__name__}: {error}"
        self._log.info("exec_refused", why=reason, code=code)
        self._send_exit(code, reason)
        self._is_output_over.set()
        return None

    def _serve(self, program: ExecProgram | None) -> None:
        """Receive until the end is sent. Raise LinkOver."""
        if program is not None:
            for early in self._early:
                self._take(early, program)
        while not self._is_output_over.is_set():
            if self._closing.is_set():
                raise LinkOver("the cell ends")
            if program is not None:
                program.end_with_attempt()
            frame = self._link.receive(TICK_SECONDS)
            if frame is not None and program is not None:
                self._take(frame, program)

    def _take(self, frame: ExecFrame, program: ExecProgram) -> None:
        """Apply signals and sizes at once; the rest waits for the program to read."""
        if frame.kind is FrameKind.RESIZE:
            program.resize(*read_size(frame))
        elif frame.kind is FrameKind.SIGNAL:
            self._signal(program, frame.payload[0])
        with self._lock:
            self._queued_bytes += len(frame.payload)
            is_flood = self._queued_bytes > 2 * MAX_UNCONFIRMED_BYTES
        if is_flood:
            raise LinkOver("web sends more input than it may")
        self._frames.put(frame)

    def _signal(self, program: ExecProgram, number: int) -> None:
        if number in signal.valid_signals():
            program.signal(number)

    def _settle(self) -> None:
        """Wait until web has stored the end, which may wait for a slow reader of the output.

        Raise LinkOver, also if web closes before.
        """
        until = math.inf
        while not self._link.is_all_accepted and time.monotonic() < until:
            if self._closing.is_set():
                until = min(until, time.monotonic() + CLOSING_SECONDS)
            frame = self._link.receive(TICK_SECONDS)
            if frame is not None:
                self._link.confirm(frame.position)

    def _pass_output(self, program: ExecProgram) -> None:
        """Send output and end; without a link, read on, so that the program is not blocked."""
        is_over = False
        while (output := program.read()) is not None:
            if is_over:
                continue
            try:
                kind = FrameKind.STDERR if output.is_error else FrameKind.DATA
                self._link.send(kind, output.content)
            except LinkOver:
                is_over = True
        end = program.wait()
        self._log.info("exec_ended", code=end.code, why=end.reason)
        if not is_over:
            self._send_exit(end.code, end.reason)
        self._is_output_over.set()

    def _send_exit(self, code: int, reason: str) -> None:
        try:
            self._link.send(FrameKind.EXIT, exit_frame(1, exit_code=code, reason=reason).payload)
        except LinkOver as over:
            self._log.info("exec_end_not_sent", why=str(over))

    def _pass_input(self, program: ExecProgram) -> None:
        """Write input as fast as the program reads, and confirm it."""
        while (frame := self._frames.get()) is not None:
            if frame.kind is FrameKind.DATA and self._command.stdin:
                program.write(frame.payload)
            elif frame.kind is FrameKind.EOF and self._command.stdin:
                program.close_input()
            with self._lock:
                self._queued_bytes -= len(frame.payload)
            self._link.confirm(frame.position)

    def _hang_up(self, program: ExecProgram) -> None:
        """End the program as a terminal that disconnects does, and kill it if it continues."""
        self._link.close()
        program.signal(signal.SIGHUP)
        seconds = CLOSING_SECONDS if self._closing.is_set() else HANGUP_SECONDS
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._is_output_over.wait(TICK_SECONDS):
            program.end_with_attempt()
            if self._closing.is_set():
                until = min(until, time.monotonic() + CLOSING_SECONDS)

    def _thread(
        self, name: str, work: Callable[[ExecProgram], None], program: ExecProgram
    ) -> threading.Thread:
        def run() -> None:
            try:
                work(program)
            except Exception:
                self._log.exception("exec_thread_failed", thread=name)
                program.close()
                self._is_output_over.set()

        thread = threading.Thread(target=run, name=f"exec-{name}", daemon=True)
        thread.start()
        return thread
