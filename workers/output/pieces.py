"""The output of one attempt that is uploaded, and the pieces of several for one request."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from controlplane.contract.output_batch import MAX_PIECES, NOT_TRIED, OutputPiece, PieceResult
from workers.output.client import STORED, UploadDeferred

STREAMS = ("stdout", "stderr")
BATCH_BYTES = 512 * 1024  # of pieces in one request
SMALL_BYTES = 64 * 1024  # an output with a larger rest is sent by itself
MAX_PAUSE_SECONDS = 30.0  # between tries of what the control plane refuses


@dataclass(slots=True)
class Upload:
    """The upload of one attempt's output."""

    uid: str
    folder: Path
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    ended: set[str] = field(default_factory=set)  # streams of which no more is stored
    unwanted: bool = False  # the control plane does not know the attempt (any more)
    complete: bool = False  # no more output will be written
    stored_at: float = 0.0  # when a piece was accepted, in monotonic seconds
    not_before: float = 0.0  # rounds skip it until then, as its last piece was refused
    pause: float = 0.0
    # All of a complete output is uploaded, or the rest has to wait for a later round.
    settled: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def open_streams(self) -> list[str]:
        """The streams of which more may be stored."""
        return [] if self.unwanted else [name for name in STREAMS if name not in self.ended]

    @property
    def is_due(self) -> bool:
        """Whether rounds may try it: its last piece was not refused a short time ago."""
        return self.not_before <= time.monotonic()

    @property
    def largest_rest(self) -> int:
        """Bytes of a stream that are not uploaded yet, of that which has most."""
        return max((self._rest(stream) for stream in self.open_streams), default=0)

    def read(self, stream: str, limit: int) -> OutputPiece | None:
        """Return the next piece of a stream, of at most `limit` bytes; None: there is none.

        Raise UploadDeferred if the file cannot be read.
        """
        try:
            with open(self.folder / stream, "rb") as file:
                file.seek(self.sent[stream])
                content = file.read(limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UploadDeferred(str(error)) from error
        return OutputPiece(self.uid, stream, self.sent[stream], content) if content else None

    def note(self, piece: OutputPiece, result: PieceResult) -> None:
        """Record the result of a piece. Raise UploadDeferred if it has to be sent again."""
        if result.status not in STORED:
            raise UploadDeferred(f"HTTP status {result.status}")
        if result.status == 404:
            self.unwanted = True
        elif result.status == 410:
            self.ended.add(piece.stream)  # the other stream has a limit of its own
        elif result.size is None:
            raise UploadDeferred("an answer without a size")
        else:
            self.sent[piece.stream] = result.size
        self.stored_at, self.pause, self.not_before = time.monotonic(), 0.0, 0.0

    def defer(self, first_pause: float) -> None:
        """Let rounds skip this output for a time that doubles with each refusal."""
        self.pause = min(max(2 * self.pause, first_pause), MAX_PAUSE_SECONDS)
        self.not_before = time.monotonic() + self.pause

    def _rest(self, stream: str) -> int:
        try:
            return max((self.folder / stream).stat().st_size - self.sent[stream], 0)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise UploadDeferred(str(error)) from error


@dataclass(slots=True)
class BatchOutcome:
    """What became of the pieces of a request."""

    refused: list[tuple[Upload, UploadDeferred]] = field(default_factory=list)
    untried: dict[str, Upload] = field(default_factory=dict)
    has_stored: bool = False
    is_store_away: bool = False  # the store of the control plane did not answer


class UploadBatch:
    """Outputs of which pieces are sent in one request, with their locks held."""

    def __init__(self) -> None:
        self.pieces: list[OutputPiece] = []
        self.ends: list[Upload] = []
        """Those that were complete before they were read."""
        self._owners: list[Upload] = []
        self._locked: list[Upload] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for upload in self._locked:
            upload.lock.release()

    @property
    def uploads(self) -> Sequence[Upload]:
        """The outputs of this request."""
        return self._locked

    @property
    def has_room(self) -> bool:
        """Whether the request may have the pieces of another output."""
        return self._bytes < BATCH_BYTES and len(self.pieces) + len(STREAMS) <= MAX_PIECES

    def add(self, upload: Upload) -> None:
        """Add the rest of an output, unless another thread is sending it. Raise UploadDeferred."""
        if not upload.lock.acquire(blocking=False):
            return
        self._locked.append(upload)
        if upload.complete:  # read before the files, which are then complete
            self.ends.append(upload)
        found = [upload.read(stream, SMALL_BYTES) for stream in upload.open_streams]
        for piece in found:
            if piece is not None:
                self.pieces.append(piece)
                self._owners.append(upload)
                self._bytes += len(piece.content)

    def note(self, results: Sequence[PieceResult]) -> BatchOutcome:
        """Record the results of the pieces."""
        outcome = BatchOutcome()
        for upload, piece, result in zip(self._owners, self.pieces, results, strict=True):
            if result.status == NOT_TRIED:
                outcome.untried[upload.uid] = upload
                continue
            try:
                upload.note(piece, result)
                outcome.has_stored = True
            except UploadDeferred as error:
                outcome.refused.append((upload, error))
                outcome.is_store_away |= result.status == 503
        return outcome
