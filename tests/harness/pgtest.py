"""Starts a throw-away PostgreSQL and Redis before Django's settings are read.

Loaded by `-p tests.harness.pgtest`, hence before pytest-django. Only the first process starts them:
the workers of pytest-xdist inherit the environment, and pytest-django gives each a database of its
own. DATABASE_URL or CELERY_BROKER_URL in the environment are used instead, if set.
"""

import atexit
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from controlplane.config.stack.parts import postgres, redis
from controlplane.config.stack.parts.ports import free_port

# Short, since a Unix socket's path may have 107 bytes.
PREFIX = "cellrun-test-"
ABANDONED_AFTER_SECONDS = 24 * 3600


def _start_services() -> None:
    if "CELLRUN_HOME" in os.environ and PREFIX in os.environ["CELLRUN_HOME"]:
        # Workers have a database each. A sweep would delete what the database of another one knows.
        os.environ["CELLRUN_HOME"] += os.environ.get("PYTEST_XDIST_WORKER", "")
        return
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    folder.chmod(0o755)
    for name in [name for name in os.environ if name.startswith("CELLRUN_")]:
        del os.environ[name]
    os.environ["CELLRUN_HOME"] = str(folder / "home")
    os.environ["CELLRUN_SECRET_KEY"] = "only-for-tests-" * 4
    started: list[subprocess.Popen[bytes]] = []
    if not os.environ.get("DATABASE_URL"):
        started.append(_start_postgres(folder))
    if not os.environ.get("CELERY_BROKER_URL"):
        started.append(_start_redis(folder))
    atexit.register(_stop_services, os.getpid(), folder, started)


def _start_postgres(folder: Path) -> subprocess.Popen[bytes]:
    sockets = folder / "s"
    sockets.mkdir()
    cluster = postgres.Cluster(
        folder / "postgres", port=5432, socket_folder=str(sockets), durable=False
    )
    postgres.give_to_database_user(sockets)
    postgres.create_cluster(cluster, password=None)
    with (folder / "postgres.log").open("wb") as log:
        server = subprocess.Popen(
            postgres.server_command(cluster, death_signal="QUIT"),
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    postgres.wait_until_ready(cluster, deadline_seconds=30)
    os.environ["DATABASE_URL"] = f"postgresql://{postgres.USER}@/postgres?host={sockets}"
    return server


def _start_redis(folder: Path) -> subprocess.Popen[bytes]:
    port, password = free_port(), secrets.token_urlsafe(24)
    redis.write_password(folder, password)
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(
            redis.server_command(port=port, folder=folder),
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    redis.wait_until_ready(port=port, deadline_seconds=30)
    os.environ["CELERY_BROKER_URL"] = redis.broker_url(port=port, password=password)
    return server


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _stop_services(owner: int, folder: Path, started: list["subprocess.Popen[bytes]"]) -> None:
    if os.getpid() != owner:  # a forked child ends: the servers are not its own
        return
    for server in started:
        server.send_signal(signal.SIGQUIT)
    for server in started:
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Remove what a killed run left behind (its servers died with it)."""
    for folder in Path("/tmp").glob(PREFIX + "*"):
        try:
            if time.time() - folder.stat().st_mtime > ABANDONED_AFTER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


_start_services()
