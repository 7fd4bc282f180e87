"""The browser of tests cannot follow the networks of containers that start and end meanwhile."""

import os
from collections.abc import Iterator
from pathlib import Path

from tests.harness.chromium import started_browser

PROC = Path("/proc")


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and theirs."""
    for children in PROC.joinpath(str(pid), "task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from descendants(child)


def test_browser_has_no_netlink_socket() -> None:
    with started_browser() as browser:
        browser.new_page().goto("about:blank")
        files = [
            file.readlink().name
            for pid in descendants(os.getpid())
            if b"--remote-debugging-pipe" in PROC.joinpath(str(pid), "cmdline").read_bytes()
            for file in PROC.joinpath(str(pid), "fd").iterdir()
        ]
        rows = PROC.joinpath("net/netlink").read_text().splitlines()
    sockets = {file for file in files if file.startswith("socket:")}
    assert sockets
    assert not sockets & {f"socket:[{row.split()[-1]}]" for row in rows}
