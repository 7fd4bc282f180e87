"""Escape control characters in text from tasks and users before it reaches a terminal."""

import codecs
import re
import sys
from typing import TextIO

# C0 without tab and newline, DEL, C1, and characters that change the direction of text.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return `text` with each control character as `\x1b`, or as `\u202e` above 255."""
    return _ACTING.sub(_escape, text)


def visible_json(text: str) -> str:
    """Return the JSON document `text` with the same characters as JSON escapes."""
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_line(line: str, file: TextIO | None = None, *, raw: bool = False) -> None:
    """Print a line of output; unchanged with `raw`, or if the file is no terminal."""
    out = sys.stdout if file is None else file
    print(visible(line) if out.isatty() and not raw else line, file=out, flush=True)


class VisibleWriter:
    """Writes bytes to a terminal as text, with control characters escaped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes) -> None:
        """Write a piece, which may end within a character."""
        self._file.write(visible(self._decoder.decode(piece)))

    def close(self) -> None:
        """Write an incomplete last character. The file stays open."""
        self._file.write(visible(self._decoder.decode(b"", final=True)))
        self._file.flush()


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
