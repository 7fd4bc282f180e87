"""Read a job from a YAML or JSON file or standard input, and apply `--set` to it."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cellrun.errors import BadInput
from controlplane.spec import UnreadableDocument, guess_language, read_document

# All values of these fields are texts.
_TEXTS = ("env", "labels")


def read_spec(source: str, changes: Iterable[str] = ()) -> dict[str, Any]:
    """Return the job in `source` (a path, or `-`) with `changes` applied. Raises BadInput."""
    spec = parse_spec(_read(source), source)
    for change in changes:
        apply_change(spec, change)
    return spec


def parse_spec(text: str, source: str) -> dict[str, Any]:
    """Return the mapping in `text`, JSON or YAML as the server reads it. Raises BadInput."""
    try:
        spec = read_document(text, guess_language(text))
    except UnreadableDocument as fault:
        raise BadInput(f"{source}: {fault}") from None
    if not isinstance(spec, dict):
        raise BadInput(f"{source}: a job is a mapping of names to values")
    return spec


def apply_change(spec: dict[str, Any], change: str) -> None:
    """Set one value (YAML): `replicas=4`, `retries.failure=1`, `groups.0.image=busybox`."""
    path, found, text = change.partition("=")
    if not found or not path:
        raise BadInput(f"--set {change!r}: expected NAME=VALUE")
    try:
        value = read_document(text, "yaml")
    except UnreadableDocument as fault:
        raise BadInput(f"--set {change!r}: {fault}") from None
    *parents, last = path.split(".")
    if parents and parents[-1] in _TEXTS and not isinstance(value, str | None):
        value = text  # env.LR=0.1 is a text without quotes, too
    place: Any = spec
    for name in parents:
        place = _step_into(place, name, change)
    if isinstance(place, list):
        place[_position(place, last, change)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise BadInput(f"--set {change!r}: a plain value has no fields to set")


def _step_into(place: Any, name: str, change: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, name, change)]
    if isinstance(place, dict):
        return place.setdefault(name, {})
    raise BadInput(f"--set {change!r}: a plain value has no fields to set")


def _position(place: list[Any], name: str, change: str) -> int:
    if not name.isdigit() or int(name) >= len(place):
        raise BadInput(f"--set {change!r}: {name!r} is not a position from 0 to {len(place) - 1}")
    return int(name)


def _read(source: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return raw.decode("utf-8")
    except OSError as fault:
        raise BadInput(f"{source}: {(fault.strerror or 'cannot be read').lower()}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{source}: the file is not UTF-8 text") from None
