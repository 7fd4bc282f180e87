"""Declared documents come back as they went; what is malformed is refused with its path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Self

import pytest

from controlplane.contract.codec import (
    Clamp,
    Document,
    Instant,
    Key,
    MalformedMessage,
    MaxItems,
    Text,
    compact_json,
    read_typed,
)


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point(Document):
    AS_LIST = True

    x: int
    y: float
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Part(Document):
    name: Annotated[str, Text(5)]
    size: Size = Size.SMALL
    colour: Colour | None = None


@dataclass(frozen=True, slots=True)
class Parcel(Document):
    TYPE = "parcel"

    number: Annotated[int, Key("no")]
    parts: Annotated[tuple[Part, ...], MaxItems(3)] = ()
    points: tuple[Point, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    by_name: Mapping[str, Part] = field(default_factory=dict)
    sent_at: Instant | None = None
    share: Annotated[int, Clamp(0, 100)] | None = None
    is_fragile: bool = False
    is_open: bool = True
    lid: Part | None = None
    tags: frozenset[str] = frozenset()

    def checked(self) -> Self:
        """Refuse one number."""
        if self.number == 13:
            raise MalformedMessage("is unlucky", "no")
        return self


FULL = Parcel(
    number=7,
    parts=(Part("bolt", Size.LARGE, Colour.RED), Part("nut")),
    points=(Point(1, 2.5, "n"), Point(3, 4.0)),
    labels={"a": 1},
    by_name={"b": Part("cap")},
    sent_at=5.0,
    share=0,
    is_fragile=True,
    is_open=False,
    lid=Part("lid"),
    tags=frozenset({"z", "a"}),
)


def test_the_json_has_the_declared_keys() -> None:
    assert FULL.body() == {
        "type": "parcel",
        "no": 7,
        "parts": [{"name": "bolt", "size": 2, "colour": "red"}, {"name": "nut", "size": 1}],
        "points": [[1, 2.5, "n"], [3, 4.0, None]],
        "labels": {"a": 1},
        "by_name": {"b": {"name": "cap", "size": 1}},
        "sent_at": 5.0,
        "share": 0,
        "is_fragile": True,
        "is_open": False,
        "lid": {"name": "lid", "size": 1},
        "tags": ["a", "z"],
    }


def test_document_round_trips() -> None:
    assert Parcel.read(FULL.body()) == FULL
    assert read_typed(FULL.body(), {"parcel": Parcel}) == FULL


def test_default_values_are_not_written() -> None:
    assert Parcel(7).body() == {"type": "parcel", "no": 7, "is_open": True}
    assert Parcel.read({"no": 7}) == Parcel(7)
    assert Parcel.read({"no": 7, "labels": None, "is_open": None}) == Parcel(7)


def test_unknown_fields_and_items_of_a_newer_version_are_ignored() -> None:
    body = {"no": 7, "newer": {"x": 1}, "points": [[1, 2, None, "newer"]]}
    assert Parcel.read(body) == Parcel(7, points=(Point(1, 2.0),))


def test_texts_are_cleaned_and_numbers_clamped() -> None:
    body = {"no": 1, "lid": {"name": "a\x00b\ud800cdef"}, "share": 900, "sent_at": -3}
    parcel = Parcel.read(body)
    assert (parcel.lid, parcel.share, parcel.sent_at) == (Part("ab?cd"), 100, 0.0)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("parcel", "is not an object"),
        ({}, "no is missing"),
        ({"no": "7"}, "no is not a whole number"),
        ({"no": True}, "no is not a whole number"),
        ({"no": 1 << 63}, "no is out of range"),
        ({"no": 13}, "no is unlucky"),
        ({"no": 1, "is_open": 1}, "is_open is not true or false"),
        ({"no": 1, "parts": {}}, "parts is not a list"),
        ({"no": 1, "parts": [{"name": "a"}] * 4}, "parts has more than 3 items"),
        ({"no": 1, "parts": [{"name": "a"}, {}]}, "parts[1].name is missing"),
        ({"no": 1, "parts": [{"name": 5}]}, "parts[0].name is not a text"),
        ({"no": 1, "lid": {"name": "a", "size": 3}}, "lid.size 3 is not a Size"),
        ({"no": 1, "lid": {"name": "a", "size": True}}, "lid.size True is not a Size"),
        ({"no": 1, "lid": {"name": "a", "size": []}}, "lid.size [] is not a Size"),
        ({"no": 1, "points": [[1]]}, "points[0] is not [x, y, note]"),
        ({"no": 1, "points": [[1, "2", None]]}, "points[0].y is not a number"),
        ({"no": 1, "points": [[1, float("nan"), None]]}, "points[0].y is not a number"),
        ({"no": 1, "labels": {"a": "x"}}, "labels.'a' is not a whole number"),
        ({"no": 1, "by_name": {"b": {}}}, "by_name.'b'.name is missing"),
    ],
)
def test_a_malformed_document_is_refused_with_its_path(body: Any, error: str) -> None:
    with pytest.raises(MalformedMessage) as raised:
        Parcel.read(body)
    assert str(raised.value) == error


@pytest.mark.parametrize("body", [None, [], {}, {"type": 5}, {"type": []}, {"type": "letter"}])
def test_an_unknown_type_is_refused(body: Any) -> None:
    with pytest.raises(MalformedMessage, match="unknown message type"):
        read_typed(body, {"parcel": Parcel})


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -2, 1795905031.8948252, True, None, ""], "b": {"c": []}},
        {"text": "naïve 数 \u2028 \x00 \x7f <&>"},
        {"lone": "\ud800"},
        {1: "a key that is no text", None: 2, False: 3},
        [2**63, -(2**63), 2**70],
        [float("inf"), float("-inf"), 1e300, 5e-324, 0.1 + 0.2, -0.0],
        ("a tuple", (1,)),
        "null",
    ],
)
def test_compact_json_writes_what_the_json_module_writes(value: Any) -> None:
    written = compact_json(value)
    assert written.isascii()
    assert json.loads(written) == json.loads(json.dumps(value))


def test_compact_json_writes_no_spaces() -> None:
    assert compact_json({"a": [1, 2.5], "b": {}}) == '{"a":[1,2.5],"b":{}}'


def test_compact_json_keeps_not_a_number() -> None:
    assert compact_json([float("nan"), None]) == "[NaN,null]"


@pytest.mark.parametrize("value", [Point(1, 2.0), datetime(2026, 1, 1, tzinfo=UTC), b"bytes", {1}])
def test_compact_json_refuses_what_the_json_module_refuses(value: Any) -> None:
    with pytest.raises(TypeError):
        compact_json(value)


def test_compact_json_refuses_values_that_contain_themselves() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular"):
        compact_json(value)
