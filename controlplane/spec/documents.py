"""Parsing of JSON, and of the subset of YAML that is equivalent to JSON, to plain values.

YAML uses the core schema of YAML 1.2: `yes`, `on`, `12:30` and dates are texts. Aliases (a small
text could expand to a huge document), tags, several documents, keys that are not texts, and
duplicate keys in either language are rejected.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import yaml

from controlplane.spec.faults import Place, UnreadableDocument

Language = Literal["json", "yaml"]

MAX_DEPTH = 64  # of nested lists and mappings; a job needs 6
MAX_NODES = 500_000  # 1,000 jobs of 500 values each

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}|0x[0-9a-fA-F]{1,25}|0o[0-7]{1,30}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?", re.ASCII)
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_CONSTANTS |= dict.fromkeys(("true", "True", "TRUE"), True)
_CONSTANTS |= dict.fromkeys(("false", "False", "FALSE"), False)


def read_document(text: str | bytes, language: Language) -> Any:
    """Parse `text` and return its value. Raise UnreadableDocument."""
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise UnreadableDocument(f"not UTF-8 at byte {error.start}") from None
    return _read_json(decoded) if language == "json" else _read_yaml(decoded)


def guess_language(text: str) -> Language:
    """Return json if the text begins like JSON, else yaml."""
    return "json" if text.lstrip()[:1] in ("{", "[") else "yaml"


def check_plain(value: Any) -> None:
    """Check that PostgreSQL can store the value. Raise UnreadableDocument."""
    level: list[Any] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise UnreadableDocument(f"more than {MAX_NODES} values")
        level = _children_of(level)
        if not level:
            return
    raise UnreadableDocument(f"more than {MAX_DEPTH} nested lists and mappings")


def find_value_fault(value: Any, place: Place = ()) -> tuple[Place, str] | None:
    """Return the place and fault of the first text or number that cannot be stored, or None."""
    if isinstance(value, str | float):
        text = fault_of_text(value) if isinstance(value, str) else _fault_of_number(value)
        return (place, text) if text else None
    if len(place) > MAX_DEPTH:
        return None
    children: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, list):
        children = iter(enumerate(value))
    elif isinstance(value, dict):
        children = iter(value.items())
        if any(isinstance(key, str) and fault_of_text(key) for key in value):
            return place, "a key contains a character that cannot be stored"
    faults = (find_value_fault(item, (*place, step)) for step, item in children)
    return next((fault for fault in faults if fault), None)


def fault_of_text(text: str) -> str:
    """Return why `text` cannot be stored; empty if it can."""
    if "\x00" in text:
        return "a text contains a NUL character"
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return "a text contains a lone surrogate"
    return ""


def _fault_of_number(number: float) -> str:
    return "" if math.isfinite(number) else "a number is not finite"


def _children_of(level: Sequence[Any]) -> list[Any]:
    """Return keys and values of the mappings, and items of the lists, in `level`."""
    children: list[Any] = []
    for value in level:
        if isinstance(value, str):
            if text := fault_of_text(value):
                raise UnreadableDocument(text)
        elif isinstance(value, dict):
            children += value
            children += value.values()
        elif isinstance(value, list):
            children += value
        elif isinstance(value, float) and (text := _fault_of_number(value)):
            raise UnreadableDocument(text)
    return children


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UnreadableDocument(f"not JSON: {error.msg.lower()} in {where}") from None
    except RecursionError:
        raise UnreadableDocument("JSON that is nested too deeply") from None
    except UnreadableDocument:
        raise
    except ValueError:  # a whole number of thousands of digits
        raise UnreadableDocument("JSON with a number that is too long") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = sorted(key for key, _ in pairs)
        duplicate = next(key for key, following in pairwise(keys) if key == following)
        raise UnreadableDocument(f"the key {duplicate[:100]!r} occurs twice in a mapping")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise UnreadableDocument(f"not JSON: {name} is not a number")


def _read_yaml(text: str) -> Any:
    try:
        return _YamlReader(text).read()
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UnreadableDocument(f"not YAML: {error.problem or error.context}{where}") from None
    except yaml.YAMLError:
        raise UnreadableDocument("not YAML: a character that YAML does not allow") from None


class _YamlReader:
    """Builds the value from the parser's events, and stops at the first unsupported one."""

    def __init__(self, text: str) -> None:
        self._events = yaml.parse(text, Loader=_LOADER)
        self._nodes = 0

    def read(self) -> Any:
        """Return the value of the only document."""
        next(self._events)  # the stream starts
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), depth=1)
        next(self._events)  # the document ends
        if not isinstance(next(self._events), yaml.StreamEndEvent):
            raise UnreadableDocument("more than one YAML document")
        return value

    def _next(self) -> Any:
        return next(self._events)

    def _value(self, event: Any, depth: int) -> Any:
        self._nodes += 1
        where = f"in line {event.start_mark.line + 1}"
        if self._nodes > MAX_NODES:
            raise UnreadableDocument(f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise UnreadableDocument(f"more than {MAX_DEPTH} nested lists and mappings")
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableDocument(f"YAML aliases (*{event.anchor}) are not supported: {where}")
        if event.tag is not None:
            raise UnreadableDocument(f"YAML tags ({event.tag[:100]}) are not supported: {where}")
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self._items(depth))
        if isinstance(event, yaml.MappingStartEvent):
            return self._pairs(depth)
        return _scalar(event.value) if event.implicit[0] and not event.style else event.value

    def _items(self, depth: int) -> Iterator[Any]:
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            yield self._value(event, depth + 1)

    def _pairs(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = event.value if isinstance(event, yaml.ScalarEvent) and not event.tag else None
            where = f"in line {event.start_mark.line + 1}"
            if key is None:
                raise UnreadableDocument(f"a key of a YAML mapping is not a plain text: {where}")
            if key in mapping:
                raise UnreadableDocument(
                    f"the key {key[:100]!r} occurs twice in a mapping: {where}"
                )
            mapping[key] = self._value(self._next(), depth + 1)
        return mapping


def _scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
