"""Keep the files of gang members on this cell up to date, with one request to web for all of them.

The interval is one second until all members run, then five: members may move to other cells. While
web is unavailable the files stay unchanged, and the interval grows.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.gang import Gang, GangMember
from workers.attempt.attempt import AttemptRun
from workers.attempt.gangs import files
from workers.attempt.gangs.files import KEY_FILE, list_peers, split_address
from workers.control_api import ControlPlaneRefused, ControlPlaneUnavailable

log = structlog.get_logger(__name__)

FIRST_SECONDS = (0.2, 0.4, 0.8)  # the members of a small gang start within a second
SHORT_SECONDS, LONG_SECONDS = 1.0, 5.0
# Members that are missing after a minute are unlikely to start within the next second.
SLOW_AFTER_REQUESTS = 60
MIN_INTERVAL_FACTOR = 4  # minimum interval as a multiple of the duration of an update
KEY_OWNER = 2**31 - 2  # a uid that no task runs as
AWAY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(slots=True)
class LocalGang:
    """The members of a gang on this cell. `has_new`: one was added since the last update."""

    members: dict[str, AttemptRun] = field(default_factory=dict)
    has_new: threading.Event = field(default_factory=threading.Event)


class GangSupervisor:
    """The gangs of one cell, with one thread for each while a member of it runs here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, LocalGang] = {}

    def watch(self, attempt: AttemptRun) -> None:
        """Keep the files of a member up to date until it ends."""
        job_id = attempt.launch.spec.job_id
        with self._lock:
            watched = self._watched.setdefault(job_id, LocalGang())
            is_first = not watched.members
            watched.members[attempt.uid] = attempt
            watched.has_new.set()
        if is_first:
            name, call = f"gang-{job_id}", (job_id, watched.has_new)
            threading.Thread(target=self._follow, args=call, name=name, daemon=True).start()

    def _follow(self, job_id: int, has_new: threading.Event) -> None:
        interval, written = GangPollInterval(), WrittenStates()
        while members := self._living(job_id):
            if has_new.is_set():
                has_new.clear()
                interval = GangPollInterval()  # others usually follow
            gang, took = None, 0.0
            try:
                gang = fetch_gang(members)
                began = time.monotonic()
                if gang is not None:
                    written.write_changes(gang, members)
                took = time.monotonic() - began
            except Exception:  # the next response may succeed, and no other thread retries
                log.exception("gang_not_updated", job=job_id)
            has_new.wait(max(interval.after(gang), took * MIN_INTERVAL_FACTOR))

    def _living(self, job_id: int) -> list[AttemptRun]:
        """Return the local members that have not ended; forget the gang if there are none."""
        with self._lock:
            watched = self._watched[job_id]
            watched.members = {
                uid: attempt
                for uid, attempt in watched.members.items()
                if not attempt.ended and not attempt.context.closed.is_set()
            }
            if not watched.members:
                del self._watched[job_id]
            return list(watched.members.values())


@dataclass(frozen=True, slots=True)
class GangStatus:
    """A gang and the addresses of its hosts; None: the host cannot be resolved."""

    gang: Gang
    addresses: Mapping[str, str | None]


class WrittenStates:
    """The last written status of each local member, to skip unchanged files."""

    def __init__(self) -> None:
        self._last: GangStatus | None = None
        self._written: dict[str, GangStatus] = {}

    def write_changes(self, gang: Gang, members: list[AttemptRun]) -> None:
        """Write the gang for each member whose files differ."""
        status = GangStatus(gang, resolve_addresses(gang))
        if self._last is None or status != self._last:
            self._last = status
        latest = self._last
        self._written = {
            attempt.uid: latest
            for attempt in members
            if self._written.get(attempt.uid) is latest or update_member(attempt, latest)
        }


class GangPollInterval:
    """The interval between two requests, which depends on their results."""

    def __init__(self) -> None:
        self._polls = 0
        self._unanswered = 0

    def after(self, gang: Gang | None) -> float:
        """Return the seconds to the next request after a response, or None."""
        if gang is None:
            self._unanswered += 1
            return AWAY_SECONDS[min(self._unanswered, len(AWAY_SECONDS)) - 1]
        self._unanswered = 0
        self._polls += 1
        if gang.is_settled:
            return LONG_SECONDS
        if self._polls <= len(FIRST_SECONDS):
            return FIRST_SECONDS[self._polls - 1]
        return SHORT_SECONDS if self._polls < SLOW_AFTER_REQUESTS else LONG_SECONDS


def fetch_gang(members: list[AttemptRun]) -> Gang | None:
    """Return the gang as web describes it; None: no response.

    Web refuses an attempt that it has ended, which does not concern the other members.
    """
    for attempt in members:
        try:
            return Gang.read(attempt.context.web.fetch(attempt.uid, "gang"))
        except (ControlPlaneUnavailable, MalformedMessage) as error:
            attempt.log.warning("gang_not_read", error=str(error))
            return None
        except ControlPlaneRefused as error:
            attempt.log.info("gang_request_refused", error=str(error))
    return None


def update_member(attempt: AttemptRun, status: GangStatus) -> bool:
    """Write the gang into the files of one member; return whether that succeeded.

    A member that the control plane does not know is skipped, and removed files are not created
    again.
    """
    me = find_self(attempt, status.gang)
    if me is None or me.number != attempt.launch.run.number:
        return False
    try:
        write_files(attempt, status, me)
    except OSError as error:
        if not attempt.ended:
            attempt.log.warning("gang_files_not_written", error=str(error))
        return False
    return True


def find_self(attempt: AttemptRun, gang: Gang) -> GangMember | None:
    """Return the member that `attempt` runs."""
    return gang.find(attempt.launch.spec.group, attempt.launch.run.task_index)


def gang_folder(attempt: AttemptRun) -> Path:
    """Return what is mounted at `files.GANG_FOLDER` in the container."""
    return attempt.workspace / "gang"


def hosts_path(attempt: AttemptRun) -> Path:
    """Return what is mounted at /etc/hosts in the container."""
    return attempt.workspace / "hosts"


def ssh_folder(attempt: AttemptRun) -> Path:
    """Return what is mounted at `files.SSH_FOLDER` in the container."""
    return attempt.context.secrets.subfolder(attempt.uid, "ssh")


def key_path(attempt: AttemptRun) -> str:
    """Return the path of the private key for the program."""
    if attempt.launch.spec.task_type == "container":
        return f"{files.SSH_FOLDER}/{KEY_FILE}"
    return str(ssh_folder(attempt) / KEY_FILE)


def make_files(attempt: AttemptRun, gang: Gang, me: GangMember) -> None:
    """Write all files of a member before its start. Raise OSError, UnsafeSecretFolder."""
    assert gang.key is not None
    gang_folder(attempt).mkdir(parents=True, exist_ok=True)
    gang_folder(attempt).chmod(0o755)  # for any user of the task
    folder = attempt.context.secrets.make_subfolder(attempt.uid, "ssh")
    write_whole(folder / f"{KEY_FILE}.pub", f"{gang.key.public}\n")
    write_whole(folder / "authorized_keys", f"{gang.key.public}\n")
    _write_key(folder / KEY_FILE, gang.key.private, attempt.launch.spec.task_type == "container")
    write_files(attempt, GangStatus(gang, resolve_addresses(gang)), me)


def _write_key(path: Path, text: str, is_contained: bool) -> None:
    """Make the key readable for every user of the task, but no user of the host.

    Its parent folder is closed on the host. ssh refuses a key of its own user that others may read,
    but accepts one of another user; so the key belongs to a user of no task.
    """
    write_whole(path, text, mode=0o444 if is_contained else 0o600)
    if is_contained and os.geteuid() == 0:
        os.chown(path, KEY_OWNER, KEY_OWNER)


def write_files(attempt: AttemptRun, status: GangStatus, me: GangMember) -> None:
    """Write all files that change while the gang runs. Raise OSError."""
    gang = status.gang
    peers = list_peers(gang, me)
    folder = gang_folder(attempt)
    if attempt.launch.spec.task_type == "container":
        write_in_place(hosts_path(attempt), files.hosts_text(me, peers, status.addresses.get))
    write_whole(ssh_folder(attempt) / "config", files.ssh_config(peers, key_path(attempt)))
    write_whole(folder / "peers", files.peers_table(peers))
    write_whole(folder / "peers.json", files.peers_json(gang, me, peers))
    # Last, so that a program that waits for it finds the other files.
    if gang.is_ready:
        (folder / "ready").touch()
    else:
        (folder / "ready").unlink(missing_ok=True)


def write_in_place(path: Path, text: str) -> None:
    """Overwrite the existing file: a bind mount refers to its inode."""
    content = text.encode()
    if path.exists() and path.read_bytes() == content:
        return
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, content, 0)
        os.ftruncate(file, len(content))
    finally:
        os.close(file)


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace the file atomically."""
    content = text.encode()
    if path.exists() and path.read_bytes() == content:
        return
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as stream:
        stream.write(content)
    draft.chmod(mode)
    os.replace(draft, path)


def resolve_addresses(gang: Gang) -> dict[str, str | None]:
    """Return the addresses of all hosts of members."""
    texts = {text for member in gang.members for text in member.addresses.values()}
    return {host: resolve(host) for host in {split_address(text)[0] for text in texts}}


def resolve(host: str) -> str | None:
    """Return the address of a host name, as this machine resolves it."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None
