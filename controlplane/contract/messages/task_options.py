"""Options of a task as sent to a cell: secrets, outputs, mounts, tmpfs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from controlplane.contract.codec import Document

# Every container has these: Docker's default set without MKNOD, NET_RAW, SETFCAP, SETPCAP and
# AUDIT_WRITE. They suffice to start as root, change the owner of files and switch the user.
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
# Defaults of the engine that Cellrun drops, but every task may request: with the usual ones, the
# capabilities of Kubernetes' policy "Baseline". NET_RAW is not among them, because containers of
# all users of a cell share a bridge, where it allows to answer for other addresses.
HARMLESS_CAPABILITIES = frozenset({"AUDIT_WRITE", "MKNOD", "SETFCAP", "SETPCAP"})


def find_restricted(capabilities: Sequence[str], allowed: Collection[str] = ()) -> list[str]:
    """Return the names in `capabilities` that not every task may request, and `allowed` lacks."""
    granted = {*USUAL_CAPABILITIES, *HARMLESS_CAPABILITIES, *allowed}
    return [name for name in capabilities if name.removeprefix("CAP_") not in granted]


@dataclass(frozen=True, slots=True)
class SecretUse(Document):
    """The secret `name`, as the variable `env` or as a file at `path`."""

    name: str
    env: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Output(Document):
    """A file or folder at `path`, which is stored as artifact `name` when the task succeeds.

    `path` may have wildcards (`controlplane.contract.patterns`): the matches are stored below
    `name`, with their paths below `path_prefix`. `keep_on_failure`: it is also stored when the
    attempt fails or is stopped. `url`: where it is stored, instead of the attempt's own place.
    """

    path: str
    name: str
    keep_on_failure: bool = False
    path_prefix: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Mount(Document):
    """A mount of the host's `source`, which the pool must allow, at `target` in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Tmpfs(Document):
    """A folder in memory at `path`; its content counts as memory of the task."""

    path: str
    size_mib: int
