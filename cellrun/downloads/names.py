"""Select artifacts by name, folder or pattern, and map their names to safe relative paths."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from cellrun.documents import Artifact
from cellrun.errors import BadInput


def select_artifacts(
    found: Sequence[Artifact], wanted: str
) -> list[tuple[Artifact, tuple[str, ...]]]:
    """Return the artifacts that `wanted` selects, each with its path as `cp -r` would name it.

    `wanted` is the name of a file, of a folder, or a pattern of such names, in which `*` and `?` do
    not match "/". An empty one selects all, with their whole names.
    """
    patterns = wanted.strip("/").split("/") if wanted.strip("/") else []
    chosen = []
    for item in [item for item in found if is_at(item, wanted)] or found:
        parts = tuple(item["name"].split("/"))
        if len(parts) >= len(patterns) and all(map(_matches, parts, patterns)):
            chosen.append((item, parts[max(len(patterns) - 1, 0) :]))
    return chosen


def is_at(item: Artifact, wanted: str) -> bool:
    """Return whether `wanted` is the name of the artifact, or of a folder that contains it."""
    name = wanted.strip("/")
    return bool(name) and f"{item['name']}/".startswith(f"{name}/")


def check_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a path from the server. Raise BadInput for one that is no file name."""
    checked = tuple(parts)
    for part in checked:
        if part in ("", ".", "..") or "/" in part or "\\" in part or not part.isprintable():
            name = "/".join(checked)
            raise BadInput(f"the server sent {name!r}, which is not safe as a path: not written")
    return checked


def _matches(part: str, pattern: str) -> bool:
    return part == pattern or fnmatchcase(part, pattern)
