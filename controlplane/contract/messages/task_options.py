"""Options of a task beside its program, as sent to a cell: secrets, outputs, mounts, tmpfs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.contract import fields

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
class SecretUse:
    """The secret `name`, as the variable `env` or as a file at `path`; its value is sent sealed."""

    name: str
    env: str | None = None
    path: str | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return fields.without_none({"name": self.name, "env": self.env, "path": self.path})


@dataclass(frozen=True, slots=True)
class Output:
    """The file or folder at `path` is kept as artifact `name` when the task has succeeded."""

    path: str
    name: str

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "name": self.name}


@dataclass(frozen=True, slots=True)
class Mount:
    """The host's `source`, which the pool must allow, is mounted at `target` in the container."""

    source: str
    target: str
    read_only: bool = True

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"source": self.source, "target": self.target, "read_only": self.read_only}


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A folder in memory at `path`, which counts as memory of the task."""

    path: str
    size_mib: int

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "size_mib": self.size_mib}


def read_secret_use(item: Any) -> SecretUse:
    """Return a use of a secret. Raise MalformedMessage."""
    body = fields.as_object(item)
    return SecretUse(
        name=fields.text(body, "name"),
        env=fields.text(body, "env", None),
        path=fields.text(body, "path", None),
    )


def read_output(item: Any) -> Output:
    """Return an output. Raise MalformedMessage."""
    body = fields.as_object(item)
    return Output(path=fields.text(body, "path"), name=fields.text(body, "name"))


def read_mount(item: Any) -> Mount:
    """Return a mount. Raise MalformedMessage."""
    body = fields.as_object(item)
    return Mount(
        source=fields.text(body, "source"),
        target=fields.text(body, "target"),
        read_only=fields.flag(body, "read_only", True),
    )


def read_tmpfs(item: Any) -> Tmpfs:
    """Return a folder in memory. Raise MalformedMessage."""
    body = fields.as_object(item)
    return Tmpfs(path=fields.text(body, "path"), size_mib=fields.whole(body, "size_mib"))


TaskOption = SecretUse | Output | Mount | Tmpfs


def bodies(options: tuple[TaskOption, ...]) -> list[Mapping[str, Any]] | None:
    """Return the JSON form; None if there is none."""
    return [option.body() for option in options] or None
