"""Faults of a submitted document, each with its field and the limit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

Place = tuple[str | int, ...]
"""Path in the document: names of fields and positions in lists."""

Finding = tuple[Place, str]
"""The place and text of a fault, before its path is written in the form of the document."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at `field`: a path like `groups[0].image`; empty: the whole document."""

    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}" if self.field else self.detail


class InvalidSpec(ValueError):
    """The document is not a valid job; `faults` lists all reasons."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


class UnreadableDocument(ValueError):
    """The text is not JSON or YAML, or uses an unsupported feature."""


def path_of(place: Iterable[str | int]) -> str:
    """Return `place` as text: `groups[0].image`."""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def read_fault(error: Mapping[str, Any], known_fields: Mapping[str, str]) -> Fault:
    """Convert one pydantic error to a fault. `known_fields`: fields with their correct place."""
    place: Place = tuple(step for step in error["loc"] if step != "[key]")
    kind, context = error["type"], error.get("ctx") or {}
    if kind == "extra_forbidden":
        return Fault(path_of(place), _unknown(place, known_fields))
    if kind == "too_long" and context.get("actual_length") is None:
        kind = "too_long_to_count"  # a mapping: pydantic stops counting at the limit
    if kind in _TEXTS:
        return Fault(path_of(place), _TEXTS[kind].format(**context))
    if kind == "value_error":
        return Fault(path_of(place), str(context["error"]))
    return Fault(path_of(place), error["msg"].removeprefix("Input should be ").lower())


def _unknown(place: Place, known_fields: Mapping[str, str]) -> str:
    name = str(place[-1])[:100]
    if name in known_fields:
        return f"does not belong here, but {known_fields[name]}"
    matches = get_close_matches(name, known_fields, n=1)
    return f"unknown field; did you mean {matches[0]}?" if matches else "unknown field"


_TEXTS = {
    "missing": "is required",
    "string_type": "must be a text (in YAML, put it in quotes)",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is out of range",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items, not {actual_length}",
    "too_long_to_count": "must have at most {max_length} items",
    "literal_error": "must be {expected}",
    "none_required": "must be null",
}
