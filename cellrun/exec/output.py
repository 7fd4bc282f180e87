"""Write the output of a program, whose reader may be slow, while the connection is served."""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from controlplane.contract.exec_frames import MAX_UNCONFIRMED_BYTES, ExecFrame, FrameKind

# Web sends less than this before it gets an ACK: only a faulty one makes `put` wait.
MAX_QUEUED_BYTES = 2 * MAX_UNCONFIRMED_BYTES


class OutputWriter:
    """A queue of frames, which one thread writes and then confirms."""

    def __init__(
        self,
        descriptors: tuple[int, int],
        *,
        confirm: Callable[[int], None],
        fail: Callable[[], None],
    ) -> None:
        """`descriptors`: of output and errors. `confirm` takes the position of a written frame.

        `fail` is called after a failed write.
        """
        self._stdout, self._stderr = descriptors
        self._confirm = confirm
        self._fail = fail
        self._changed = threading.Condition()
        self._frames: deque[ExecFrame] = deque()  # the first one is being written
        self._queued_bytes = 0
        self._fault: OSError | None = None

    def start(self) -> None:
        """Start the thread, which ends with the process or after a failed write."""
        threading.Thread(target=self._write_frames, daemon=True).start()

    def put(self, frame: ExecFrame) -> None:
        """Queue a frame, once there is room. Raise the OSError of a failed write."""
        with self._changed:
            while self._queued_bytes >= MAX_QUEUED_BYTES and self._fault is None:
                self._changed.wait()
            self._check()
            self._frames.append(frame)
            self._queued_bytes += len(frame.payload)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything is written. Raise the OSError of a failed write."""
        with self._changed:
            while self._frames and self._fault is None:
                self._changed.wait()
            self._check()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _write_frames(self) -> None:
        while True:
            with self._changed:
                while not self._frames:
                    self._changed.wait()
                frame = self._frames[0]
            try:
                is_error = frame.kind is FrameKind.STDERR
                write_all(self._stderr if is_error else self._stdout, frame.payload)
            except OSError as fault:
                with self._changed:
                    self._fault = fault
                    self._changed.notify_all()
                self._fail()
                return
            self._confirm(frame.position)
            with self._changed:
                self._frames.popleft()
                self._queued_bytes -= len(frame.payload)
                self._changed.notify_all()


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, also to a descriptor that does not block. Raise OSError."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
