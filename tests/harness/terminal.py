"""Run the command `cellrun` on a pseudo-terminal, and read what it writes there."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RUN = "from client.cli import app; app()"


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
    """Return what the command writes up to `text`, or up to its end."""
    found = b""
    while text not in found:
        try:
            found += os.read(reader, 65536)
        except OSError:  # the command has ended
            break
    return found
