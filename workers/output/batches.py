"""Upload the last output of attempts that end at about the same time in one request.

Outputs that end while a request is on its way make up the next one, so that a cell at rest waits
for nothing, and a busy one makes few requests. An output that the control plane
does not store in this way is uploaded alone; if it had no time for it, it is in a further request.
While a request takes long, no output is tried.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from controlplane.contract.output_batch import (
    MAX_PIECES,
    RESPONSE_SECONDS,
    BatchAnswer,
    OutputPiece,
)

MAX_SMALL_BYTES = 64 * 1024
"""Larger rests of an attempt are uploaded by themselves."""
MAX_BATCH_BYTES = 512 * 1024


Send = Callable[[Sequence[OutputPiece]], BatchAnswer]


class OutputUntried(Exception):
    """No request with the output has begun in time, or the control plane had no time for it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    pieces: Sequence[OutputPiece]  # of one attempt
    on_stored: Callable[[], object]
    result: Future[bool] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return sum(len(piece.content) for piece in self.pieces)


class OutputBatches:
    """Sends the last outputs of attempts together, one request at a time."""

    def __init__(self, send: Send) -> None:
        """Create it; `send` uploads pieces."""
        self._send = send
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._next: _Entry | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._sending_since = math.inf

    def store(
        self, pieces: Sequence[OutputPiece], seconds: float, on_stored: Callable[[], object]
    ) -> bool:
        """Upload the pieces of an attempt; return whether they are stored.

        Call `on_stored` if they are, possibly later. Raise what `send` raises, OutputUntried, and
        TimeoutError if the request has not ended after `seconds`.
        """
        entry = _Entry(pieces, on_stored)
        with self._lock:
            if self._is_closed or self._is_stuck() or not self._start():
                return False
            self._queue.put(entry)
        try:
            return entry.result.result(timeout=seconds)
        except TimeoutError:
            if entry.result.cancel():
                raise OutputUntried from None
            raise

    def _is_stuck(self) -> bool:
        # A response of which a byte arrives now and then has no other limit of time.
        return time.monotonic() - self._sending_since > 2 * RESPONSE_SECONDS

    def _start(self) -> bool:
        """Start the thread if there is none; return whether it runs."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="output-batches", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the machine has no thread left now
                return False
            self._thread = thread
        return True

    def close(self, seconds: float) -> None:
        """End: waiting outputs count as not stored."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(seconds)

    def _serve(self) -> None:
        while (first := self._next or self._queue.get()) is not None:
            self._next = None
            batch = [entry for entry in self._take(first) if _begin(entry)]
            if self._is_closed:
                _settle(batch, BatchAnswer())
            elif batch:
                self._send_batch(batch)

    def _take(self, first: _Entry) -> list[_Entry]:
        """Return `first` and what else is waiting, as much as one request may have."""
        batch, count, size = [first], len(first.pieces), first.size
        while True:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch
            if entry is None:
                self._queue.put(None)
                return batch
            count, size = count + len(entry.pieces), size + entry.size
            if count > MAX_PIECES or size > MAX_BATCH_BYTES:
                self._next = entry
                return batch
            batch.append(entry)

    def _send_batch(self, batch: Sequence[_Entry]) -> None:
        self._sending_since = time.monotonic()
        try:
            answer = self._send([piece for entry in batch for piece in entry.pieces])
        except Exception as error:
            for entry in batch:
                entry.result.set_exception(error)
        else:
            _settle(batch, answer)
        finally:
            self._sending_since = math.inf


def _begin(entry: _Entry) -> bool:
    return entry.result.set_running_or_notify_cancel()


def _settle(batch: Sequence[_Entry], answer: BatchAnswer) -> None:
    for entry in batch:
        uid = entry.pieces[0].uid
        if uid in answer.untried:
            entry.result.set_exception(OutputUntried())
            continue
        is_stored = uid in answer.stored
        if is_stored:
            entry.on_stored()
        entry.result.set_result(is_stored)
