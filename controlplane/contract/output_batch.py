"""Pieces of the output of several attempts in one upload of their cell.

The body is a line of JSON, [uid, stream, offset, length] of each piece, and then their bytes in the
same order. The answer has for each piece, in this order, a status as that of a single upload and
the size of the stream; null if it is not known.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.codec import MalformedMessage, compact_json

MAX_PIECES = 500
"""More are refused: each takes 0.5 ms of the web process."""

NOT_TRIED = 429
"""The status of a piece that the control plane had no time for."""


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes of a stream of an attempt, from `offset` on."""

    uid: str
    stream: str
    offset: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PieceResult:
    """What became of a piece: an HTTP status, and the size of the stream if it is known."""

    status: int
    size: int | None = None


def pack_pieces(pieces: Sequence[OutputPiece]) -> bytes:
    """Return the body of an upload of `pieces`."""
    head = [[it.uid, it.stream, it.offset, len(it.content)] for it in pieces]
    return b"".join([compact_json(head).encode(), b"\n", *(it.content for it in pieces)])


def unpack_pieces(body: bytes) -> list[OutputPiece]:
    """Return the pieces in the body of an upload. Raise MalformedMessage."""
    head, _, rest = body.partition(b"\n")
    try:
        found = json.loads(head)
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage("the first line is not JSON") from cause
    if not isinstance(found, list):
        raise MalformedMessage("the first line is not a list of pieces")
    if len(found) > MAX_PIECES:
        raise MalformedMessage(f"{len(found)} pieces: at most {MAX_PIECES} are allowed")
    pieces, begin = list[OutputPiece](), 0
    for entry in found:
        pieces.append(_read_piece(entry, rest, begin))
        begin += len(pieces[-1].content)
    if begin < len(rest):
        raise MalformedMessage(f"{len(rest) - begin} bytes belong to no piece")
    return pieces


def _read_piece(entry: Any, contents: bytes, begin: int) -> OutputPiece:
    match entry:
        case [str(uid), str(stream), int(offset), int(length)] if (
            0 <= offset < 1 << 53 and 0 < length <= len(contents) - begin
        ):
            return OutputPiece(uid, stream, offset, contents[begin : begin + length])
    raise MalformedMessage(
        f"a piece is not a uid, a stream, an offset and a length: {entry!r:.200}"
    )


def read_results(document: Any, count: int) -> list[PieceResult]:
    """Return the results of `count` pieces from the answer. Raise MalformedMessage."""
    found = document.get("results") if isinstance(document, dict) else None
    if not isinstance(found, list) or len(found) != count:
        raise MalformedMessage(f"an answer without the results of {count} pieces")
    return [read_result(item) for item in found]


def read_result(item: Any) -> PieceResult:
    """Return the result of a piece from its document. Raise MalformedMessage."""
    match item:
        case {"status": int(status), "size": int(size)} if size >= 0:
            return PieceResult(status, size)
        case {"status": int(status), "size": None}:
            return PieceResult(status)
    raise MalformedMessage(f"not the result of a piece: {item!r:.200}")
