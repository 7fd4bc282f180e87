"""Files of a task beside its image: secrets, outputs, mounts, tmpfs."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from controlplane.contract.artifacts import CHECKPOINT
from controlplane.spec.faults import Finding, Place
from controlplane.spec.fields import (
    ArtifactName,
    EnvName,
    FilePath,
    Folder,
    Memory,
    Model,
    Name,
    TargetPath,
    is_artifact_name,
)

MAX_SECRETS = 64
MAX_OUTPUTS = 64
MAX_MOUNTS = 32

SecretName = Name
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{1,31}$")]
# Defaults of the engine that containers do not have here: every task may request them. All others
# need a pool that allows privileged tasks.
HARMLESS_CAPABILITIES = frozenset({"AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP"})


class Secret(Model):
    """A secret of the project, as an environment variable or as a file in memory."""

    name: SecretName
    env: EnvName | None = Field(default=None, description="Variable that holds the value.")
    path: FilePath | None = Field(default=None, description="File that holds the value.")

    @model_validator(mode="after")
    def _check(self) -> "Secret":
        if (self.env is None) == (self.path is None):
            raise ValueError("must have either env or path")
        return self


class Output(Model):
    """A file or folder that is stored when the task has succeeded."""

    path: TargetPath
    name: ArtifactName | None = Field(
        default=None, description="Name of the artifact; default: the last part of its path."
    )

    def artifact_name(self) -> str:
        """Return the explicit name, or the default."""
        return self.name or self.path.rstrip("/").rpartition("/")[2]


class Mount(Model):
    """A file or folder of the cell's host; only what the pool's `allowed_mounts` names."""

    source: Folder
    target: TargetPath
    read_only: bool = True


class Tmpfs(Model):
    """A folder in memory; its content counts as memory of the task."""

    path: TargetPath
    size: Memory = Field(default=64, description="64Mi")


def check_files(
    secrets: Sequence[Secret],
    outputs: Sequence[Output],
    mounts: Sequence[Mount],
    tmpfs: Sequence[Tmpfs],
    inputs: Sequence[str],
) -> Iterator[Finding]:
    """Yield the faults between these fields of a group; `inputs`: paths."""
    names: list[str] = []
    for position, output in enumerate(outputs):
        name = output.artifact_name()
        place: Place = ("outputs", position, "name")
        if name == CHECKPOINT:
            yield place, f"{name} is the name of checkpoints"
        elif name in names:
            yield place, f"{name} is named twice"
        elif any(f"{name}/".startswith(f"{n}/") or f"{n}/".startswith(f"{name}/") for n in names):
            yield place, f"{name} lies in another output, or contains it"
        elif output.name is None and not is_artifact_name(name):
            yield place, f"{name!r} cannot be the name of an artifact: give it one"
        names.append(name)
    variables: list[str] = []
    for position, secret in enumerate(secrets):
        if secret.env is not None and secret.env in variables:
            yield ("secrets", position, "env"), f"{secret.env} is set twice"
        if secret.env is not None and secret.env.startswith("CELLRUN_"):
            yield ("secrets", position, "env"), "names that begin with CELLRUN_ are set by Cellrun"
        variables.append(secret.env or "")
    yield from _check_places(secrets, mounts, tmpfs, inputs)


def _check_places(
    secrets: Sequence[Secret],
    mounts: Sequence[Mount],
    tmpfs: Sequence[Tmpfs],
    inputs: Sequence[str],
) -> Iterator[Finding]:
    taken = [path.rstrip("/") for path in inputs]
    wanted: list[Finding] = [
        (("secrets", n, "path"), item.path) for n, item in enumerate(secrets) if item.path
    ]
    wanted += [(("mounts", n, "target"), item.target) for n, item in enumerate(mounts)]
    wanted += [(("tmpfs", n, "path"), item.path) for n, item in enumerate(tmpfs)]
    for place, path in wanted:
        path = path.rstrip("/")
        if path in taken:
            yield place, "is also the path of another input, secret, mount or tmpfs"
        taken.append(path)


def body_of(item: Any) -> dict[str, Any]:
    """Return an option in the format of orders."""
    match item:
        case Secret():
            return {"name": item.name, "env": item.env, "path": item.path}
        case Output():
            return {"path": item.path, "name": item.artifact_name()}
        case Mount():
            return {"source": item.source, "target": item.target, "read_only": item.read_only}
        case Tmpfs():
            return {"path": item.path, "size_mib": item.size}
    raise TypeError(f"{item!r} is not an option of a task")
