"""New output of several attempts in one upload of their cell.

The body is a line of JSON, [uid, stream, offset, length] of each piece, and then their bytes in the
same order. The answer names the attempts of which all pieces are stored, and those for which there
was no time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.codec import MalformedMessage, compact_json

MAX_PIECES = 200
"""More are refused: each takes 0.5 ms of the web process."""

RESPONSE_SECONDS = 4.0
"""How long a cell waits for a response."""

STORE_SECONDS = 1.0
"""After that the control plane begins no attempt."""

_MAX_HEAD_BYTES = MAX_PIECES * 120


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes of a stream of an attempt, from `offset` on."""

    uid: str
    stream: str
    offset: int
    content: bytes = field(repr=False)


def pack_pieces(pieces: Sequence[OutputPiece]) -> bytes:
    """Return the body of an upload of `pieces`."""
    head = [[it.uid, it.stream, it.offset, len(it.content)] for it in pieces]
    return b"".join([compact_json(head).encode(), b"\n", *(it.content for it in pieces)])


def unpack_pieces(body: bytes) -> list[OutputPiece]:
    """Return the pieces in the body of an upload. Raise MalformedMessage."""
    end = body.find(b"\n", 0, _MAX_HEAD_BYTES)
    if end < 0:
        raise MalformedMessage(f"no line of at most {_MAX_HEAD_BYTES} bytes begins the body")
    try:
        found = json.loads(body[:end])
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage("the first line is not JSON") from cause
    if not isinstance(found, list):
        raise MalformedMessage("the first line is not a list of pieces")
    if len(found) > MAX_PIECES:
        raise MalformedMessage(f"{len(found)} pieces: at most {MAX_PIECES} are allowed")
    pieces, begin = list[OutputPiece](), end + 1
    for entry in found:
        pieces.append(_read_piece(entry, body, begin))
        begin += len(pieces[-1].content)
    if begin < len(body):
        raise MalformedMessage(f"{len(body) - begin} bytes belong to no piece")
    return pieces


def _read_piece(entry: Any, body: bytes, begin: int) -> OutputPiece:
    match entry:
        case [str(uid), str(stream), int(offset), int(length)] if (
            0 <= offset < 1 << 53 and 0 < length <= len(body) - begin
        ):
            return OutputPiece(uid, stream, offset, body[begin : begin + length])
    raise MalformedMessage(
        f"a piece is not a uid, a stream, an offset and a length: {entry!r:.200}"
    )


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The attempts of a batch of which all pieces are `stored`, and those that were not begun.

    `untried`: there was no time for them, so that a further batch may store them. All others need
    an upload of their own.
    """

    stored: frozenset[str] = frozenset()
    untried: frozenset[str] = frozenset()


def read_answer(document: Any) -> BatchAnswer:
    """Return what the answer names. Raise MalformedMessage."""
    match document:
        case {"stored": [*stored], "untried": [*untried]} if all(
            isinstance(uid, str) for uid in (*stored, *untried)
        ):
            return BatchAnswer(frozenset(stored), frozenset(untried))
    raise MalformedMessage(f"an answer without the attempts that are stored: {document!r:.200}")
