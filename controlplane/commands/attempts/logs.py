"""Append the output of attempts: only from the cell that runs them, in order, up to a limit."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
from uuid import UUID

import structlog

from controlplane import clock
from controlplane.commands.tenancy.stored_bytes import (
    forget_attempts,
    record_output,
    record_outputs,
)
from controlplane.contract.output_batch import NOT_TRIED, OutputPiece, PieceResult
from controlplane.contract.wire import keys
from controlplane.domain.errors import CellrunError, NotFound
from controlplane.domain.jobs.stored_bytes import END_OF_STREAM, LimitedStorage
from controlplane.queries.attempts.artifacts import find_purged, is_purged
from controlplane.queries.cells.keys import find_keys
from controlplane.queries.tenancy.stored_bytes import find_storage_of_attempt
from controlplane.queries.views.attempts import (
    find_keys_for_group,
    find_own_attempts,
    find_uploader,
)
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
# A cell waits 10 s for the answer to a request with many pieces, and the ends of attempts 5 s.
BATCH_SECONDS = 4.0
STORED = (HTTPStatus.OK, HTTPStatus.GONE)
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
        return size if storage is None else _end_stream(uid, stream, size, storage)
    except StreamFull as full:
        record_output(uid, stream, full.size)
        raise
    finally:
        if is_purged(uid):
            _remove_purged(uid)
            raise NotFound(f"attempt {uid} has been deleted")


def append_outputs(cell: str, pieces: Sequence[OutputPiece]) -> list[PieceResult]:
    """Append pieces of the output of attempts of `cell`; return the result of each.

    As `append_output`, but the sizes of all streams are recorded in one statement. Not tried are
    the pieces after one for which the store did not answer, and those that remain when the time of
    a request is over.
    """
    uids = {piece.uid: _read_uid(piece.uid) for piece in pieces}
    own_uids = find_own_attempts(cell, {uid for uid in uids.values() if uid is not None})
    own = {text: uid for text, uid in uids.items() if uid in own_uids}
    results: list[PieceResult] = []
    sizes: dict[tuple[UUID, str], int] = {}
    ended: set[tuple[UUID, str]] = set()
    ends_at = clock.monotonic() + BATCH_SECONDS
    try:
        for part in _split(pieces, own, appends_at_once()):
            found = _append_part(part, own)
            for piece, result in zip(part, found, strict=True):
                uid = own.get(piece.uid)
                if uid is not None and result.status in STORED:
                    sizes[uid, piece.stream] = result.size or 0
                    if result.status == HTTPStatus.GONE:
                        ended.add((uid, piece.stream))
            results += found
            is_away = any(it.status == HTTPStatus.SERVICE_UNAVAILABLE for it in found)
            if is_away or clock.monotonic() >= ends_at:
                break
    finally:
        changed = _record_sizes(sizes, ended)
    for number, piece in enumerate(pieces[: len(results)]):
        key = uids[piece.uid], piece.stream
        if results[number].status in STORED and key in changed:
            results[number] = changed[key]
    untried = len(pieces) - len(results)
    return results + [PieceResult(NOT_TRIED)] * untried


def _read_uid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _split(
    pieces: Sequence[OutputPiece], own: Mapping[str, UUID | None], at_once: int
) -> Iterator[list[OutputPiece]]:
    """Return parts of at most `at_once` pieces, each of another stream."""
    part: dict[tuple[UUID | str, str], OutputPiece] = {}
    for piece in pieces:
        key = own.get(piece.uid) or piece.uid, piece.stream
        if len(part) == at_once or key in part:
            yield list(part.values())
            part = {}
        part[key] = piece
    if part:
        yield list(part.values())


def _append_part(part: Sequence[OutputPiece], own: Mapping[str, UUID | None]) -> list[PieceResult]:
    """Append pieces of different streams at once; the threads use no database."""
    appends = [_prepare(own.get(piece.uid), piece) for piece in part]
    if len(appends) == 1:
        return [_result_of(appends[0])]
    return list(_threads().map(_result_of, appends))


def _prepare(uid: UUID | None, piece: OutputPiece) -> Callable[[], int]:
    """Return what appends a piece, or raises the error that it has."""
    if uid is None or piece.stream not in STREAMS:
        return partial(_raise, NotFound("there is no such stream of an attempt of this cell"))
    try:
        storage = _find_end(uid, piece.stream, piece.offset)
    except OSError as error:
        return partial(_raise, error)
    if storage is not None:
        return partial(_raise, StreamFull(piece.offset, storage.refuse(0)))
    append = current_store().append_log
    return partial(append, uid, piece.stream, offset=piece.offset, content=piece.content)


def _raise(error: Exception) -> int:
    raise error


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(appends_at_once(), "append-output")


def _result_of(append: Callable[[], int]) -> PieceResult:
    """Return the result of a piece, with the status of a single upload with the same error."""
    try:
        return PieceResult(HTTPStatus.OK, append())
    except NotFound:
        return PieceResult(HTTPStatus.NOT_FOUND)
    except WrongOffset as error:
        return PieceResult(HTTPStatus.CONFLICT, error.size)
    except StreamFull as error:
        return PieceResult(HTTPStatus.GONE, error.size)
    except StoreFull:
        return PieceResult(HTTPStatus.INSUFFICIENT_STORAGE)
    except StoreUnavailable:
        return PieceResult(HTTPStatus.SERVICE_UNAVAILABLE)
    except OSError:
        log.exception("output_not_stored")
        return PieceResult(HTTPStatus.INTERNAL_SERVER_ERROR)


def _record_sizes(
    sizes: Mapping[tuple[UUID, str], int], ended: Collection[tuple[UUID, str]]
) -> dict[tuple[UUID, str], PieceResult]:
    """Record the sizes of streams that have grown; return the results that change by that."""
    if not sizes:
        return {}
    results = {}
    for uid, storage in record_outputs(sizes).items():
        for stream in STREAMS:
            if (uid, stream) in sizes and (uid, stream) not in ended:
                end = partial(_end_stream, uid, stream, sizes[uid, stream], storage)
                results[uid, stream] = result = _result_of(end)
                record_output(uid, stream, result.size or 0)
    for uid in find_purged({uid for uid, _ in sizes}):
        _remove_purged(uid)
        gone = PieceResult(HTTPStatus.NOT_FOUND)
        results |= {(uid, stream): gone for stream in STREAMS if (uid, stream) in sizes}
    return results


def _end_stream(uid: UUID, stream: str, size: int, storage: LimitedStorage) -> int:
    """Append the line about the used-up storage. Raise StreamFull with the size after it."""
    line = storage.end_of_output()
    size = current_store().append_log(uid, stream, offset=size, content=line)
    raise StreamFull(size, storage.refuse(0))


def _remove_purged(uid: UUID) -> None:
    """Remove files that a purge meanwhile has missed: it has deleted the row that leads to them."""
    current_store().remove_logs(uid)
    forget_attempts([uid], keep_cached=True)


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
