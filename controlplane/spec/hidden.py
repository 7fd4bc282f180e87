"""Check that no path of a task is hidden or lost by its mounts and tmpfs."""

from collections.abc import Iterator

from controlplane.spec.faults import Place
from controlplane.spec.group import TaskGroupSpec


def check_hidden(group: TaskGroupSpec) -> Iterator[tuple[Place, str]]:
    """Yield the paths of `group` that lie in a mount of the host or in a tmpfs."""
    inputs = _paths("inputs", "path", [item.path for item in group.inputs])
    secrets = _paths("secrets", "path", [item.path or "" for item in group.secrets])
    outputs = _paths("outputs", "path", [item.path for item in group.outputs])
    tmpfs = _paths("tmpfs", "path", [item.path for item in group.tmpfs])
    mounts = _paths("mounts", "target", [item.target for item in group.mounts])
    checkpoint: list[tuple[Place, str]] = [(("checkpoint_path",), group.checkpoint_path or "")]
    result: list[tuple[Place, str]] = [(("result_file",), group.result_file or "")]
    for _, target in mounts:
        for place, path in (*inputs, *secrets, *tmpfs, *mounts, *checkpoint):
            if _lies_below(path, target) or (place == ("checkpoint_path",) and _is(path, target)):
                yield place, f"lies in the mount at {target}, which has only files of the host"
    for _, room in tmpfs:
        for place, path in inputs:
            if _lies_below(path, room):
                yield place, f"lies in the tmpfs at {room}, which is empty at the start"
        for place, path in (*outputs, *checkpoint, *result):
            if _is(path, room) or _lies_below(path, room):
                yield place, f"lies in the tmpfs at {room}, which is deleted at the end"


def _paths(field: str, name: str, paths: list[str]) -> list[tuple[Place, str]]:
    return [((field, position, name), path) for position, path in enumerate(paths)]


def _lies_below(path: str, folder: str) -> bool:
    return path.rstrip("/").startswith(folder.rstrip("/") + "/")


def _is(path: str, folder: str) -> bool:
    return path.rstrip("/") == folder.rstrip("/")
