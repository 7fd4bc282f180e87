"""Append the output of attempts: only from the cell that runs them, in order, up to a limit."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import structlog

from controlplane import clock
from controlplane.commands.tenancy.stored_bytes import (
    forget_attempts,
    record_output,
    record_outputs,
)
from controlplane.contract.output_batch import STORE_SECONDS, OutputPiece
from controlplane.contract.wire import keys
from controlplane.domain.errors import CellrunError, NotFound
from controlplane.domain.jobs.stored_bytes import END_OF_STREAM, LimitedStorage
from controlplane.queries.attempts.artifacts import find_purged, is_purged
from controlplane.queries.cells.keys import find_keys
from controlplane.queries.tenancy.stored_bytes import (
    find_attempts_with_storage,
    find_storage_of_attempt,
)
from controlplane.queries.views.attempts import find_keys_for_group, find_uploader
from controlplane.storage.current import appends_at_once, current_store
from controlplane.storage.interface import (
    STREAMS,
    StoreFull,
    StoreUnavailable,
    StreamFull,
    WrongOffset,
)

log = structlog.get_logger(__name__)

__all__ = (
    "BadUpload",
    "StreamFull",
    "WrongOffset",
    "append_output",
    "append_outputs",
    "check_batch_signature",
    "check_link_use",
    "check_signature",
)

# Allows for clock skew, and limits the time in which a recorded upload can be replayed.
MAX_CLOCK_SKEW_SECONDS = 300
_NO_BODY = hashlib.sha256().hexdigest()


class BadUpload(CellrunError):
    """The upload is not signed by an enrolled cell, or was not signed recently."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A valid signature of a cell: the key that signed, and whether the attempt is the cell's."""

    key: bytes = field(repr=False)
    owns_attempt: bool


def check_signature(
    *, cell: str, time: str, mac: str, path: str, digest: str, uid: UUID, now: datetime
) -> Signature:
    """Return the signature of `cell` for a request about attempt `uid`. Raise BadUpload.

    `path`: with its query; `digest`: SHA-256 of the body in hex.
    """
    _check_name(cell)
    _check_time(time, now)
    uploader = find_uploader(cell, uid)
    text = f"{cell}\n{time}\n{path}\n{digest}"
    key = _find_signing_key(uploader.keys if uploader else (), text, mac)
    if uploader is None or key is None:
        raise BadUpload("X-Cellrun-Mac is not of this upload by an enrolled cell")
    return Signature(key, uploader.owns_attempt)


def check_batch_signature(
    *, cell: str, time: str, mac: str, path: str, digest: str, now: datetime
) -> None:
    """Check that `cell` signed a request about several attempts. Raise BadUpload.

    `path`: with its query; `digest`: SHA-256 of the body in hex.
    """
    _check_name(cell)
    _check_time(time, now)
    _, valid = find_keys([cell]).get(cell, (0, ()))
    if _find_signing_key(valid, f"{cell}\n{time}\n{path}\n{digest}", mac) is None:
        raise BadUpload("X-Cellrun-Mac is not of this upload by an enrolled cell")


def check_link_use(
    *, cell: str, time: str, mac: str, path: str, group_id: int, now: datetime
) -> None:
    """Check that `cell` signed a request without a body for a link of a group whose work it has.

    `path`: with its query. Raise BadUpload.
    """
    _check_name(cell)
    _check_time(time, now)
    valid, text = find_keys_for_group(cell, group_id), f"{cell}\n{time}\n{path}\n{_NO_BODY}"
    if _find_signing_key(valid, text, mac) is None:
        raise BadUpload("the link is for cells that run an attempt of the group, and sign requests")


def _check_name(cell: str) -> None:
    # PostgreSQL stores no NUL, and fails for a statement that has one.
    if "\x00" in cell:
        raise BadUpload("X-Cellrun-Cell is not the name of a cell")


def _check_time(time: str, now: datetime) -> None:
    if not (time.isascii() and time.isdigit() and len(time) <= 12):
        raise BadUpload("X-Cellrun-Time is not seconds since 1970")
    if abs(int(time) - now.timestamp()) > MAX_CLOCK_SKEW_SECONDS:
        raise BadUpload(
            f"X-Cellrun-Time is more than {MAX_CLOCK_SKEW_SECONDS} s from the time here"
        )


def _find_signing_key(valid: Iterable[bytes], text: str, mac: str) -> bytes | None:
    if not mac.isascii():
        return None
    found = (key for key in valid if keys.is_signed(keys.mac_key(key, keys.UPLOAD), text, mac))
    return next(found, None)


def append_output(*, uid: UUID, stream: str, offset: int, content: bytes) -> int:
    """Append to a stream; return its size. Raise NotFound, WrongOffset, StreamFull.

    If the project has used up its limit, the stream ends after this piece, with a line about that:
    the beginning of the output of each attempt remains readable. While it is used up, a stream that
    ended in this way stores nothing more.
    """
    if stream not in STREAMS:
        raise NotFound(f"there is no stream {stream}: only {' and '.join(STREAMS)}")
    store = current_store()
    try:
        storage = _find_end(uid, stream, offset)
        if storage is not None:
            raise StreamFull(offset, storage.refuse(0))
        size = store.append_log(uid, stream, offset=offset, content=content)
        storage = record_output(uid, stream, size)
        if storage is not None:
            line = storage.end_of_output()
            size = store.append_log(uid, stream, offset=size, content=line)
            raise StreamFull(size, storage.refuse(0))
        return size
    except (StreamFull, WrongOffset) as error:
        # Also after WrongOffset: the upload of the former piece may have ended before its record.
        record_output(uid, stream, error.size)
        raise
    finally:
        if is_purged(uid):
            _remove_purged([uid])
            raise NotFound(f"attempt {uid} has been deleted")


def append_outputs(cell: str, pieces: Sequence[OutputPiece]) -> tuple[list[UUID], list[UUID]]:
    """Append to the streams of attempts of `cell`.

    Begin them in the order of the pieces. Return the attempts of which all pieces are stored, and
    those that were not begun because the time of a request was over. The others need an upload of
    their own, whose response has the reason: attempts of other cells and of projects that have used
    up their storage, streams that are full or have another size. After a failure of the store, no
    output is begun.
    """
    outputs: dict[UUID, list[OutputPiece]] = {}
    for piece in pieces:
        if (uid := _read_uid(piece.uid)) is not None:
            outputs.setdefault(uid, []).append(piece)
    found = find_attempts_with_storage(cell, outputs)
    accepted = [uid for uid in outputs if uid in found]
    batch = _Batch(clock.monotonic() + STORE_SECONDS)
    try:
        stored = batch.append_all([(uid, outputs[uid]) for uid in accepted])
    finally:
        # Whatever failed, no byte of the store remains uncounted, and no file of a purged attempt.
        try:
            record_outputs(batch.sizes)
        finally:
            purged = find_purged(accepted)
            _remove_purged(purged)
    return [uid for uid in stored if uid not in purged], batch.untried


@dataclass(slots=True)
class _Batch:
    """The sizes of streams to which a batch has appended, and what it had no time to begin."""

    ends_at: float
    store_failed: bool = False
    sizes: dict[tuple[UUID, str], int] = field(default_factory=dict)
    untried: list[UUID] = field(default_factory=list)

    def append_all(self, outputs: Sequence[tuple[UUID, Sequence[OutputPiece]]]) -> list[UUID]:
        """Append to the streams of attempts; return those of which all pieces are stored."""
        at_once = appends_at_once()
        if at_once == 1:
            results = [self._append(*output) for output in outputs]
        else:
            with ThreadPoolExecutor(at_once) as pool:
                results = list(pool.map(lambda output: self._append(*output), outputs))
        return [uid for (uid, _), is_stored in zip(outputs, results, strict=True) if is_stored]

    def _append(self, uid: UUID, pieces: Sequence[OutputPiece]) -> bool:
        """Append to the streams of an attempt; return whether all pieces are stored.

        It runs in threads, and uses no database.
        """
        append = current_store().append_log
        if not self.store_failed and clock.monotonic() >= self.ends_at:
            self.untried.append(uid)
            return False
        for piece in pieces:
            if self.store_failed or piece.stream not in STREAMS:
                return False
            key = uid, piece.stream
            try:
                self.sizes[key] = append(*key, offset=piece.offset, content=piece.content)
            except (StreamFull, WrongOffset) as error:
                self.sizes[key] = error.size
                return False
            except (StoreFull, StoreUnavailable):
                self.store_failed = True
                return False
            except OSError:
                log.exception("output_not_stored", attempt=str(uid))
                return False
        return True


def _read_uid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _remove_purged(uids: Collection[UUID]) -> None:
    """Remove files that a purge meanwhile has missed: it has deleted the row that leads to them."""
    for uid in uids:
        try:
            current_store().remove_logs(uid)
        except OSError:
            log.exception("purged_output_not_removed", attempt=str(uid))
    if uids:
        forget_attempts(uids, keep_cached=True)


def _find_end(uid: UUID, stream: str, offset: int) -> LimitedStorage | None:
    """Return the used-up storage of the project if the stream ends at `offset` for that reason.

    The line at its end records it: a restarted cell does not know that the stream has ended.
    """
    found = find_storage_of_attempt(uid) if offset else None
    if found is None or not found[0].is_used_up:
        return None
    start = max(offset - len(END_OF_STREAM), 0)
    # More than the line, so that a stream that continues after it is not taken for ended.
    piece = current_store().read_log(uid, stream, offset=start, limit=2 * len(END_OF_STREAM))
    return found[0] if piece.content == END_OF_STREAM else None
