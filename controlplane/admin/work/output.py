"""The output of attempts on pages: the last lines of a stream, read in bounded parts."""

from dataclasses import dataclass
from uuid import UUID

from controlplane.storage.current import current_store
from controlplane.storage.interface import STREAMS

# The last lines on the page of a job; that of an attempt shows more.
_LAST_LINES = 10
_LAST_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class OutputTail:
    """The end of a stream. `is_cut`: there is more before it. `fault`: why it cannot be read."""

    stream: str
    text: str = ""
    is_cut: bool = False
    fault: str = ""


def read_tail(uid: UUID, stream: str, *, lines: int, limit: int) -> OutputTail:
    """Return the last `lines` lines of a stream, at most `limit` bytes."""
    store = current_store()
    try:
        start = store.find_tail(uid, stream, lines=lines, limit=limit)
        content = store.read_log(uid, stream, offset=start, limit=limit).content
    except OSError as fault:
        return OutputTail(stream, fault=f"the store does not answer: {fault}")
    return OutputTail(stream, content.decode("utf-8", errors="replace"), start > 0)


def find_last_lines(uid: UUID) -> OutputTail:
    """Return the last lines of stderr, or of stdout if an attempt has written none to stderr."""
    for stream in reversed(STREAMS):
        tail = read_tail(uid, stream, lines=_LAST_LINES, limit=_LAST_BYTES)
        if tail.text.strip() or tail.fault:
            break
    return tail
