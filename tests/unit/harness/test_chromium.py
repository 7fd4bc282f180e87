"""The browser of tests cannot follow the networks of containers that start and end meanwhile."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.harness.chromium import started_browser

PROC = Path("/proc")


def read(path: Path) -> bytes:
    """Return a file of a process; nothing if the process has ended meanwhile."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def browsers(pid: str) -> Iterator[Path]:
    """Yield the folders of browsers among the processes that a process has started, and theirs."""
    for children in PROC.joinpath(pid, "task").glob("*/children"):
        for child in read(children).decode().split():
            if b"--remote-debugging-pipe" in read(PROC / child / "cmdline"):
                yield PROC / child
            yield from browsers(child)


def open_files(process: Path) -> Iterator[str]:
    """Yield the open files of a process, except those that it closes meanwhile."""
    for file in process.joinpath("fd").iterdir():
        with suppress(OSError):
            yield file.readlink().name


def test_browser_has_no_netlink_socket() -> None:
    with started_browser() as browser:
        browser.new_page().goto("about:blank")
        files = {file for process in browsers(str(os.getpid())) for file in open_files(process)}
        rows = PROC.joinpath("net/netlink").read_text().splitlines()
    sockets = {file for file in files if file.startswith("socket:")}
    assert sockets
    assert not sockets & {f"socket:[{row.split()[-1]}]" for row in rows}
