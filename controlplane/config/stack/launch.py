"""Start one process of the stack: wait for its needs, then replace this program by it.

    python -m controlplane.config.stack.launch --process web --run RUN \
        --needs database,preparation -- uvicorn …

The process id does not change, and is written to RUN/<process>.pid. If the supervisor that started
the process dies, the process gets a signal (Linux).
"""

import argparse
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.1
REPEAT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 1.0

# Variables of the libraries of object stores, which the shell of `make up` may have for other
# programs. The configuration of supervisor, a file, does not contain them.
STORE_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")


def main(arguments: list[str]) -> None:
    """Wait, then replace this program by the command after `--`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--process", required=True)
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--needs", default="")
    parser.add_argument("--death-signal", default="TERM")
    parser.add_argument("--reads-store", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    die_with_parent(options.death_signal)
    write_pid(options.run / f"{options.process}.pid")
    for need in filter(None, options.needs.split(",")):
        wait_for(options.process, need, NEEDS[need], options.run)
    if not options.reads_store:
        for name in [name for name in os.environ if name.startswith(STORE_PREFIXES)]:
            del os.environ[name]
    os.execvp(options.command[0], options.command)


def die_with_parent(name: str) -> None:
    """Let the kernel signal this process when its parent dies, even by SIGKILL."""
    if sys.platform != "linux" or not name:
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.Signals[f"SIG{name}"])
    if os.getppid() != parent:  # it died before this call
        sys.exit(1)


def write_pid(path: Path) -> None:
    """Write the process id to `path` atomically."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{os.getpid()}\n")
    draft.replace(path)


def wait_for(process: str, need: str, missing: Callable[[Path], str], run: Path) -> None:
    """Wait until `missing` returns an empty text; print the text when it changes."""
    printed, printed_at = "", 0.0
    while lack := missing(run):
        if lack != printed or time.monotonic() - printed_at > REPEAT_SECONDS:
            printed, printed_at = lack, time.monotonic()
            print(f"{process} waits for {need}: {lack}", flush=True)
        time.sleep(POLL_SECONDS)
    if printed:
        print(f"{process}: {need} is ready", flush=True)


def _database(_: Path) -> str:
    parts = urlsplit(os.environ["DATABASE_URL"])
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder.startswith("/"):
        return _unix(f"{folder}/.s.PGSQL.{parts.port or 5432}")
    return _listening(folder or parts.hostname or "127.0.0.1", parts.port or 5432)


def _broker(_: Path) -> str:
    parts = urlsplit(os.environ["CELERY_BROKER_URL"])
    if parts.scheme == "redis+socket":
        return _unix(parts.path)
    return _listening(parts.hostname or "127.0.0.1", parts.port or 6379)


def _prepared(run: Path) -> str:
    return "" if (run / "prepared").exists() else "migrations, accounts and cells"


def _web(_: Path) -> str:
    parts = urlsplit(os.environ.get("CELLRUN_CONTROL_URL") or os.environ["CELLRUN_PUBLIC_URL"])
    usual = 443 if parts.scheme == "https" else 80
    return _listening(parts.hostname or "127.0.0.1", parts.port or usual)


def _listening(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
    except OSError as fault:
        return f"{host}:{port}: {fault.strerror or fault}"
    return ""


def _unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(CONNECT_TIMEOUT_SECONDS)
        try:
            line.connect(path)
        except OSError as fault:
            return f"{path}: {fault.strerror or fault}"
    return ""


NEEDS: dict[str, Callable[[Path], str]] = {
    "database": _database,
    "broker": _broker,
    "preparation": _prepared,
    "web": _web,
}

if __name__ == "__main__":
    main(sys.argv[1:])
