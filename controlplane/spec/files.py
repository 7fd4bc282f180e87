"""Files of a task beside its image: secrets, outputs, mounts, tmpfs."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from controlplane.contract.patterns import split_path
from controlplane.spec.fields import (
    ArtifactName,
    EnvName,
    FilePath,
    Folder,
    Memory,
    Model,
    Name,
    OutputPath,
    OutputUrl,
    TargetPath,
)

MAX_SECRETS = 64
MAX_OUTPUTS = 64
MAX_MOUNTS = 32

SecretName = Name
Capability = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{1,31}$")]


class Secret(Model):
    """A secret of the project as an environment variable, or as a file in memory."""

    name: SecretName
    env: EnvName | None = Field(default=None, description="Variable that holds the value.")
    path: FilePath | None = Field(default=None, description="File that holds the value.")

    @model_validator(mode="after")
    def _check(self) -> "Secret":
        if (self.env is None) == (self.path is None):
            raise ValueError("must have either env or path")
        return self


class Output(Model):
    """Files and folders that are stored when the task succeeds, or when an attempt fails."""

    path: OutputPath = Field(
        description="Of a file or folder, or with the wildcards * ? [...] ** of several; a"
        " backslash makes the next character literal."
    )
    name: ArtifactName | None = Field(
        default=None,
        description="Name of the artifact, or of the folder of artifacts; default: the last part of"
        " its path before a part with wildcards.",
    )
    path_prefix: Folder | None = Field(
        default=None,
        description="With wildcards: the folder that is removed from the paths of matches; default:"
        " the folder before the first wildcard.",
    )
    url: OutputUrl | None = Field(
        default=None,
        description="The address to which exactly this file is written, or below which a folder or"
        " matches are written; {index} is the index of the task.",
    )
    keep_on_failure: bool = Field(
        default=False, description="Also store it when the attempt has failed or was stopped."
    )

    def fixed_path(self) -> str:
        """Return the path, or the folder before its first wildcard."""
        return split_path(self.path)[0]

    def has_wildcards(self) -> bool:
        """Return whether the path has wildcards."""
        return split_path(self.path)[1] is not None

    def is_folder(self) -> bool:
        """Return whether it has a folder's form: it never names a single file."""
        return self.path.endswith("/") or self.has_wildcards()

    def artifact_name(self) -> str:
        """Return the explicit name, or else the last fixed part of the path."""
        return self.name or self.fixed_path().rstrip("/").rpartition("/")[2]


class Mount(Model):
    """A file or folder of the cell's host, which the pool's `allowed_mounts` must contain."""

    source: Folder
    target: TargetPath
    read_only: bool = True


class Tmpfs(Model):
    """A folder in memory; its content counts as memory of the task."""

    path: TargetPath
    size: Memory = Field(default=64, description="64Mi")


def body_of(item: Any) -> dict[str, Any]:
    """Convert an option to the format of orders."""
    match item:
        case Secret():
            return {"name": item.name, "env": item.env, "path": item.path}
        case Output():
            options = {
                "keep_on_failure": item.keep_on_failure,
                "path_prefix": item.path_prefix,
                "url": item.url,
            }
            given = {name: value for name, value in options.items() if value}
            return {"path": item.path, "name": item.artifact_name(), **given}
        case Mount():
            return {"source": item.source, "target": item.target, "read_only": item.read_only}
        case Tmpfs():
            return {"path": item.path, "size_mib": item.size}
    raise TypeError(f"{item!r} is not an option of a task")
