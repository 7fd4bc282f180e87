"""Rules between the outputs, secrets, inputs, mounts and tmpfs of a group."""

from collections.abc import Iterable, Iterator

from controlplane.contract.artifacts import CHECKPOINT
from controlplane.spec.faults import Finding, Place
from controlplane.spec.fields import is_artifact_name
from controlplane.spec.group import TaskGroupSpec


def check_files(group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield the faults between these fields of a group."""
    names: list[str] = []
    for position, output in enumerate(group.outputs):
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
    for position, secret in enumerate(group.secrets):
        if secret.env is not None and secret.env in variables:
            yield ("secrets", position, "env"), f"{secret.env} is set twice"
        if secret.env is not None and secret.env.startswith("CELLRUN_"):
            yield ("secrets", position, "env"), "names that begin with CELLRUN_ are set by Cellrun"
        variables.append(secret.env or "")
    yield from _check_paths(group)


def _check_paths(group: TaskGroupSpec) -> Iterator[Finding]:
    """Yield paths that are used twice, or lie in a mount of the host or a tmpfs.

    They would be hidden or lost there.
    """
    inputs = _paths("inputs", "path", (item.path for item in group.inputs))
    secrets = _paths("secrets", "path", (item.path or "" for item in group.secrets))
    outputs = _paths("outputs", "path", (item.path for item in group.outputs))
    tmpfs = _paths("tmpfs", "path", (item.path for item in group.tmpfs))
    mounts = _paths("mounts", "target", (item.target for item in group.mounts))
    checkpoint: list[Finding] = [(("checkpoint_path",), group.checkpoint_path or "")]
    result: list[Finding] = [(("result_file",), group.result_file or "")]
    taken = [path.rstrip("/") for _, path in inputs]
    for place, path in (*secrets, *mounts, *tmpfs):
        if path and path.rstrip("/") in taken:
            yield place, "is also the path of another input, secret, mount or tmpfs"
        taken += [path.rstrip("/")] if path else []
    for _, target in mounts:
        for place, path in (*inputs, *secrets, *tmpfs, *mounts, *checkpoint):
            if _lies_below(path, target) or (
                place == ("checkpoint_path",) and _is_same(path, target)
            ):
                yield place, f"lies in the mount at {target}, which has only files of the host"
    for _, room in tmpfs:
        for place, path in inputs:
            if _lies_below(path, room):
                yield place, f"lies in the tmpfs at {room}, which is empty at the start"
        for place, path in (*outputs, *checkpoint, *result):
            if _is_same(path, room) or _lies_below(path, room):
                yield place, f"lies in the tmpfs at {room}, which is deleted at the end"


def _paths(field: str, name: str, paths: Iterable[str]) -> list[Finding]:
    return [((field, position, name), path) for position, path in enumerate(paths)]


def _lies_below(path: str, folder: str) -> bool:
    return path.rstrip("/").startswith(folder.rstrip("/") + "/")


def _is_same(path: str, folder: str) -> bool:
    return path.rstrip("/") == folder.rstrip("/")
