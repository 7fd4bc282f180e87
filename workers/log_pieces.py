"""The uploads of a cell, and the pieces of several of them for one request."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from controlplane.contract.output_batch import MAX_PIECES, OutputPiece, PieceResult

STREAMS = ("stdout", "stderr")
BATCH_BYTES = 512 * 1024  # of pieces in one request
SMALL_BYTES = 64 * 1024  # an output with a larger rest is sent by itself


class UploadDeferred(Exception):
    """The control plane did not accept a chunk, which is sent again later."""


@dataclass(slots=True)
class Upload:
    """The upload of one attempt's output."""

    uid: str
    folder: Path
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    ended: set[str] = field(default_factory=set)  # streams of which no more is stored
    unwanted: bool = False  # the control plane does not know the attempt (any more)
    complete: bool = False  # no more output will be written
    over: threading.Event = field(default_factory=threading.Event)  # all is uploaded
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def open_streams(self) -> list[str]:
        """The streams of which more may be stored."""
        return [] if self.unwanted else [name for name in STREAMS if name not in self.ended]

    def note_result(self, stream: str, result: PieceResult) -> bool:
        """Record the result of a piece; return False if it has to be sent again later."""
        if result.status == 410:
            self.ended.add(stream)  # the other stream has a limit of its own
        elif result.status == 404:
            self.unwanted = True
        elif result.status in (200, 409) and result.size is not None:
            self.sent[stream] = result.size
        else:
            return False
        return True


class UploadBatch:
    """Outputs of which pieces are sent in one request, with their locks held."""

    def __init__(self) -> None:
        self.pieces: list[OutputPiece] = []
        self._owners: list[Upload] = []
        self._complete: list[Upload] = []
        self._locked: list[Upload] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for upload in self._locked:
            upload.lock.release()

    @property
    def has_room(self) -> bool:
        """Whether the request may have the pieces of another output."""
        return self._bytes < BATCH_BYTES and len(self.pieces) + len(STREAMS) <= MAX_PIECES

    def add(self, upload: Upload) -> None:
        """Add the rest of an output, unless another thread is sending it."""
        if not upload.lock.acquire(blocking=False):
            return
        self._locked.append(upload)
        if upload.complete:  # read before the files, which are then complete
            self._complete.append(upload)
        for stream in upload.open_streams:
            content = read_rest(upload, stream, SMALL_BYTES)
            if content:
                offset = upload.sent[stream]
                self.pieces.append(OutputPiece(upload.uid, stream, offset, content))
                self._owners.append(upload)
                self._bytes += len(content)

    def note(self, results: Sequence[PieceResult]) -> UploadDeferred | None:
        """Record the results of the pieces; return an error if some have to be sent again."""
        refused = None
        for upload, piece, result in zip(self._owners, self.pieces, results, strict=True):
            if not upload.note_result(piece.stream, result):
                text = f"HTTP status {result.status} for attempt {upload.uid}"
                refused = UploadDeferred(text)
        return refused

    def arrived(self) -> list[Upload]:
        """Return the complete outputs of which nothing is left to upload."""
        return [
            upload
            for upload in self._complete
            if not any(_rest(upload, stream) for stream in upload.open_streams)
        ]


def is_small(upload: Upload) -> bool:
    """Return whether the rest of an output can be sent together with others."""
    return all(_rest(upload, stream) <= SMALL_BYTES for stream in upload.open_streams)


def read_rest(upload: Upload, stream: str, limit: int) -> bytes:
    """Return the next bytes of a stream, at most `limit`; none without a file."""
    try:
        with open(upload.folder / stream, "rb") as file:
            file.seek(upload.sent[stream])
            return file.read(limit)
    except FileNotFoundError:
        return b""


def _rest(upload: Upload, stream: str) -> int:
    """Return how many bytes of a stream are not uploaded yet."""
    try:
        return max((upload.folder / stream).stat().st_size - upload.sent[stream], 0)
    except FileNotFoundError:
        return 0
