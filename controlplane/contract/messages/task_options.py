"""Options of a task beside its program, as sent to a cell: secrets, outputs, mounts, tmpfs."""

from dataclasses import dataclass

from controlplane.contract.codec import Document

# Docker's default set without MKNOD, NET_RAW, SETFCAP, SETPCAP and AUDIT_WRITE: enough to start as
# root, change the owner of files and switch to another user. Every container has them.
USUAL_CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)


@dataclass(frozen=True, slots=True)
class SecretUse(Document):
    """The secret `name`, as the variable `env` or as a file at `path`; its value is sent sealed."""

    name: str
    env: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Output(Document):
    """The file or folder at `path` is kept as artifact `name` when the task has succeeded.

    `keep_on_failure`: it is also kept when the attempt has failed or was stopped.
    """

    path: str
    name: str
    keep_on_failure: bool = False


@dataclass(frozen=True, slots=True)
class Mount(Document):
    """The host's `source`, which the pool must allow, is mounted at `target` in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Tmpfs(Document):
    """A folder in memory at `path`, which counts as memory of the task."""

    path: str
    size_mib: int
