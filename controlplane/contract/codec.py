"""Encode declared dataclasses as JSON, and decode them with all types checked.

A field is written under its name or its `Key`. None is omitted, and so is an empty or false value
that is the default. Unknown fields are ignored; a malformed field is rejected with its path.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

MAX_TEXT = 16 * 1024  # maximum length of a text from a cell, characters
MAX_ITEMS = 100_000  # maximum length of a list
_EARLIEST = 0.0
_LATEST = 4102444800.0  # 2100-01-01; a later instant comes from a broken clock

Read = Callable[[Any], Any]
_Field = tuple[str, str, Read, Any]  # attribute, key, reader, value if absent
D = TypeVar("D", bound="Document")


class MalformedMessage(ValueError):
    """A message that cannot be decoded; it is logged and dropped as a whole."""

    def __init__(self, text: str, path: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} {self.text}" if self.path else self.text

    def within(self, name: str) -> Self:
        """Return the error with `name` before its path."""
        separator = "." if self.path and not self.path.startswith("[") else ""
        return type(self)(self.text, f"{name}{separator}{self.path}")


# Shared, because `json.dumps` with separators creates an encoder for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
# `json` refuses these types as well; orjson has no option for UUIDs and enumerations.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def compact_json(value: Any) -> str:
    """Return `value` as JSON without spaces, in ASCII.

    orjson takes a tenth of the time. `json` writes what orjson does not: other characters, keys
    that are not texts, integers beyond 64 bits, and NaN, which orjson writes as null. The text of
    a float may differ between the two, its value does not.
    """
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return _ENCODER.encode(value)
    if b"null" in text or not text.isascii():
        return _ENCODER.encode(value)
    return text.decode("ascii")


def clean_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` without NUL and lone surrogates, cut after `limit` characters."""
    if text.isascii() and "\x00" not in text:
        return text[:limit]
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")[:limit]


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a field in JSON, if it differs from the name of the attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text without NUL and lone surrogates, cut after `limit` characters."""

    limit: int

    def read(self, item: Any) -> str:
        """Return `item`, cleaned."""
        if not isinstance(item, str):
            raise MalformedMessage("is not a text")
        return clean_text(item, self.limit)


@dataclass(frozen=True, slots=True)
class Clamp:
    """A number that is set to the nearest bound if it is out of range."""

    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class MaxItems:
    """The maximum number of items of a list, or of keys of an object."""

    count: int


@dataclass(frozen=True, slots=True)
class Reader:
    """A custom decoder for the field."""

    read: Read


Instant = Annotated[float, Clamp(_EARLIEST, _LATEST)]
"""Seconds since 1970."""


class Document:
    """A dataclass that is encoded as a JSON object, or with `AS_LIST` as a list of its fields.

    `TYPE` is written as the field `type` (see `read_typed`). A list contains only plain values.
    """

    __slots__ = ()
    TYPE: ClassVar[str] = ""
    AS_LIST: ClassVar[bool] = False

    def body(self) -> Any:
        """Return the JSON form."""
        return _writer(type(self))(self)  # type: ignore[arg-type]

    @classmethod
    def read(cls, item: Any) -> Self:
        """Return the document from decoded JSON. Raise MalformedMessage."""
        document: Self = _reader(cls)(item)  # type: ignore[arg-type]
        return document

    def checked(self) -> Self:
        """Validate the fields together and return the document. Raise MalformedMessage."""
        return self


def read_items(read: Read, max_items: int, items: Any) -> tuple[Any, ...]:
    """Decode a list of at most `max_items` items with `read`. Raise MalformedMessage."""
    if not isinstance(items, list):
        raise MalformedMessage("is not a list")
    if len(items) > max_items:
        raise MalformedMessage(f"has more than {max_items} items")
    values: list[Any] = []
    try:
        values.extend(map(read, items))
    except MalformedMessage as error:
        raise error.within(f"[{len(values)}]") from None
    return tuple(values)


def read_typed(body: Any, types: Mapping[str, type[D]]) -> D:
    """Return the document whose class the field `type` names in `types`. Raise MalformedMessage."""
    name = body.get("type") if isinstance(body, dict) else None
    document_type = types.get(name) if isinstance(name, str) else None
    if document_type is None:
        raise MalformedMessage(f"unknown message type {name!r}")
    return document_type.read(body)


# ------------------------------------------------------------------------------------ writing


@cache
def _writer(cls: type[Document]) -> Callable[[Any], Any]:
    hints = get_type_hints(cls, include_extras=True)
    plan = [
        (
            field.name,
            _key(field.name, hints[field.name]),
            _write_of(hints[field.name]),
            _is_omitted_if_empty(field),
        )
        for field in fields(cls)  # type: ignore[arg-type]
    ]
    if cls.AS_LIST:
        get = attrgetter(*[name for name, *_ in plan])
        return lambda document: list(get(document))
    return partial(_write_object, {"type": cls.TYPE} if cls.TYPE else {}, plan)


def _write_object(
    head: dict[str, Any], plan: list[tuple[str, str, Read | None, bool]], document: Document
) -> dict[str, Any]:
    body = head.copy()
    for name, key, write, is_omitted_if_empty in plan:
        value = getattr(document, name)
        if value is None or (is_omitted_if_empty and not value):
            continue
        body[key] = value if write is None else write(value)
    return body


def _write_items(write: Read, items: Any) -> list[Any]:
    return [write(item) for item in items]


def _write_mapping(write: Read, item: Any) -> dict[str, Any]:
    return {key: write(value) for key, value in item.items()}


def _is_omitted_if_empty(field: Any) -> bool:
    if field.default_factory is not MISSING:
        return not field.default_factory()
    return field.default is not MISSING and field.default is not None and not field.default


def _write_of(hint: Any) -> Read | None:
    """Return the function that encodes a value of the type; None if no encoding is needed."""
    kind, _ = _unwrap(hint)
    origin = get_origin(kind)
    if origin is frozenset:
        return sorted
    if origin is tuple:
        write = _write_of(get_args(kind)[0])
        return list if write is None else partial(_write_items, write)
    if origin is not None and issubclass(origin, Mapping):
        write = _write_of(get_args(kind)[1])
        return dict if write is None else partial(_write_mapping, write)
    if isinstance(kind, type) and issubclass(kind, Document):
        return kind.body if kind.body is not Document.body else _writer(kind)  # type: ignore[arg-type]
    return None


# ------------------------------------------------------------------------------------ reading


@cache
def _reader(cls: type[Document]) -> Callable[[Any], Any]:
    hints = get_type_hints(cls, include_extras=True)
    plan = []
    for field in fields(cls):  # type: ignore[arg-type]
        hint = hints[field.name]
        is_list = get_origin(_unwrap(hint)[0]) is tuple
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        absent = () if is_list else MISSING
        plan.append(
            (field.name, _key(field.name, hint), _read_of(hint), None if has_default else absent)
        )
    is_checked = cls.checked is not Document.checked
    if not cls.AS_LIST:
        return partial(_read_object, cls, plan, is_checked)
    names = [name for name, *_ in plan]
    reads = [partial(_read_optional, read) if absent is None else read for *_, read, absent in plan]
    return partial(_read_list, cls, names, reads, is_checked)


def _read_object(cls: Any, plan: list[_Field], is_checked: bool, item: Any) -> Any:
    if not isinstance(item, dict):
        raise MalformedMessage("is not an object")
    values = {}
    for name, key, read, absent in plan:
        value = item.get(key)
        if value is not None:
            try:
                values[name] = read(value)
            except MalformedMessage as error:
                raise error.within(key) from None
        elif absent is MISSING:
            raise MalformedMessage("is missing").within(key)
        elif absent is not None:
            values[name] = absent
    document = cls(**values)
    return document.checked() if is_checked else document


def _read_list(cls: Any, names: list[str], reads: list[Read], is_checked: bool, item: Any) -> Any:
    if not isinstance(item, list) or len(item) < len(names):
        raise MalformedMessage(f"is not [{', '.join(names)}]")
    try:
        document = cls(*[read(value) for read, value in zip(reads, item, strict=False)])
    except MalformedMessage:
        for name, read, value in zip(names, reads, item, strict=False):
            try:
                read(value)
            except MalformedMessage as error:
                raise error.within(name) from None
        raise
    return document.checked() if is_checked else document


def _read_optional(read: Read, item: Any) -> Any:
    return None if item is None else read(item)


def _read_of(hint: Any) -> Read:
    kind, extras = _unwrap(hint)
    for extra in extras:
        if isinstance(extra, Text | Reader):
            return extra.read
    clamp = next((extra for extra in extras if isinstance(extra, Clamp)), None)
    if clamp is not None:
        return partial(_read_clamped, _PLAIN[kind], kind, clamp)
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin = get_origin(kind)
    if origin is tuple:
        return partial(read_items, _read_of(get_args(kind)[0]), _max_items(extras))
    if origin is frozenset:
        return lambda items: frozenset(read_items(_read_text, MAX_ITEMS, items))
    if origin is not None and issubclass(origin, Mapping):
        key, value = get_args(kind)
        max_keys = _max_items(extras)
        return (
            _read_any_mapping
            if value is Any
            else partial(_read_mapping, _read_of(key), _read_of(value), max_keys)
        )
    if issubclass(kind, Document):
        return _reader(kind)
    return partial(_read_member, {member.value: member for member in kind}, kind.__name__)


def _read_text(item: Any) -> str:
    if not isinstance(item, str):
        raise MalformedMessage("is not a text")
    return item


def _read_whole(item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise MalformedMessage("is not a whole number")
    if abs(item) >= 1 << 63:
        raise MalformedMessage("is out of range")
    return item


def _read_number(item: Any) -> float:
    if isinstance(item, bool) or not isinstance(item, int | float) or not abs(item) < 1e300:
        raise MalformedMessage("is not a number")
    return float(item)


def _read_flag(item: Any) -> bool:
    if not isinstance(item, bool):
        raise MalformedMessage("is not true or false")
    return item


_PLAIN: Mapping[Any, Read] = {
    str: _read_text,
    int: _read_whole,
    float: _read_number,
    bool: _read_flag,
}


def _read_clamped(read: Read, kind: Any, clamp: Clamp, item: Any) -> Any:
    return kind(min(max(read(item), clamp.minimum), clamp.maximum))


def _read_member(members: Mapping[Any, Enum], title: str, item: Any) -> Enum:
    member = members.get(item) if isinstance(item, str | int) else None
    if member is None or isinstance(item, bool):
        raise MalformedMessage(f"{item!r} is not a {title}")
    return member


def _max_items(extras: tuple[Any, ...]) -> int:
    return next((extra.count for extra in extras if isinstance(extra, MaxItems)), MAX_ITEMS)


def _read_mapping(read_key: Read, read_value: Read, max_keys: int, item: Any) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    if isinstance(item, dict) and len(item) > max_keys:
        raise MalformedMessage(f"has more than {max_keys} keys")
    for key, value in _read_any_mapping(item).items():
        try:
            values[read_key(key)] = read_value(value)
        except MalformedMessage as error:
            raise error.within(repr(key)) from None
    return values


def _read_any_mapping(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise MalformedMessage("is not an object")
    return item


# ------------------------------------------------------------------------------------ types


def _key(name: str, hint: Any) -> str:
    return next((extra.name for extra in _unwrap(hint)[1] if isinstance(extra, Key)), name)


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type without `| None` and `Annotated`, and its annotations."""
    extras: tuple[Any, ...] = ()
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            extras = (*extras, *more)
        elif get_origin(hint) in (Union, UnionType):
            [hint] = [kind for kind in get_args(hint) if kind is not NoneType]
        else:
            return hint, extras
