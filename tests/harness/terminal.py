"""Run the command `cellrun` on a pseudo-terminal, and read what it writes there."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RUN = "from cellrun.cli import app; app()"
SILENCE_SECONDS = 60.0


@contextmanager
def terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield the process and the other end of its terminal; kill it at the end."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm-256color"}
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *words],
        stdin=writer,
        stdout=writer,
        stderr=writer,
        env=environment,
    ) as process:
        os.close(writer)
        try:
            yield process, reader
        finally:
            process.kill()
            os.close(reader)


def read_until(reader: int, text: bytes) -> bytes:
    """Return what the command writes up to `text`, or up to its end.

    What came in the same read behind `text` is returned too, and not read again. Raise
    AssertionError with what was read after a time without output.
    """
    found = b""
    while text not in found:
        ready, _, _ = select.select([reader], [], [], SILENCE_SECONDS)
        assert ready, f"no {text!r} in {found!r}"
        try:
            found += os.read(reader, 65536)
        except OSError:  # the command has ended
            break
    return found
