"""Checked access to decoded JSON: the expected type, or MalformedMessage with the field's name."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MAX_TEXT = 16 * 1024  # maximum characters of a free text from a cell
_EARLIEST = 0.0
_LATEST = 4102444800.0  # 2100-01-01; instants outside (of a broken clock) are clamped
_MISSING = object()
T = TypeVar("T")


class MalformedMessage(ValueError):
    """A malformed message; it is logged and dropped, never applied partly."""


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` without NUL and lone surrogates, cut to `limit` characters."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")[:limit]


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name, _MISSING)
    if value is _MISSING or value is None:
        if default is _MISSING:
            raise MalformedMessage(f"{name} is missing")
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedMessage(f"{name} is not {kind.__name__}")
    return value


def text(body: Mapping[str, Any], name: str, default: Any = _MISSING, limit: int = MAX_TEXT) -> Any:
    """Return a cleaned string."""
    value = _typed(body, name, str, default)
    return clean_text(value, limit) if isinstance(value, str) else value


def whole(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return an integer that fits 64 bits."""
    value = _typed(body, name, int, default)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise MalformedMessage(f"{name} is out of range")
    return value


def flag(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return a boolean."""
    return _typed(body, name, bool, default)


def number(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return a finite number as float."""
    value = body.get(name, _MISSING)
    if value is _MISSING or value is None:
        if default is _MISSING:
            raise MalformedMessage(f"{name} is missing")
        return default
    return as_number(value, name)


def instant(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return seconds since 1970 as float, clamped to 1970..2100."""
    value = number(body, name, default)
    return min(max(value, _EARLIEST), _LATEST) if isinstance(value, float) else value


def mapping(body: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    """Return an object."""
    return _typed(body, name, dict, default)


def listing(
    body: Mapping[str, Any], name: str, read: Callable[[Any], T], limit: int = 100_000
) -> tuple[T, ...]:
    """Return a list, absent meaning empty, each item read by `read`."""
    items = _typed(body, name, list, [])
    if len(items) > limit:
        raise MalformedMessage(f"{name} has more than {limit} items")
    return tuple(read(item) for item in items)


def as_object(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is an object. Raise MalformedMessage."""
    if not isinstance(value, dict):
        raise MalformedMessage("an object was expected")
    return value


def as_text(value: Any) -> str:
    """Return `value` if it is a text. Raise MalformedMessage."""
    if not isinstance(value, str):
        raise MalformedMessage("a text was expected")
    return value


def as_number(value: Any, name: str = "a value") -> float:
    """Return `value` as float if it is a finite number. Raise MalformedMessage."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise MalformedMessage(f"{name} is not a number")
    return float(value)


# Shared, since `json.dumps` with separators creates an encoder for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def compact_json(value: Any) -> str:
    """Return `value` as JSON without spaces."""
    return _ENCODER.encode(value)


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return `body` without fields that are None."""
    return {name: value for name, value in body.items() if value is not None}
