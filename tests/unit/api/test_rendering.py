"""Responses are the JSON of REST framework, whichever encoder writes them."""

import json
from collections import namedtuple
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from rest_framework.renderers import JSONRenderer

from controlplane.api.base import FastJSONRenderer

Pair = namedtuple("Pair", "a b")
Color = StrEnum("Color", ["RED"])
Level = IntEnum("Level", ["LOW"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"id": 1, "texts": ["é", "\x07", "a\u2028b\u2029"], "empty": {}, "none": None, "is": True},
        [0.1, 5.0, 1e-07, 1e300, -0.0, 2**53 + 1],
        datetime(2031, 5, 4, 12, tzinfo=UTC),
        datetime(2031, 5, 4, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))),
        UUID(int=7),
        Decimal("1.5"),
        timedelta(seconds=90),
        [Color.RED, Level.LOW, Pair(1, "b"), (1, 2)],
        2**70,
        {1: "a number as a key"},
        {"a lone surrogate": "\\ud800"},
    ],
)
def test_every_value_is_rendered_as_by_rest_framework(value: Any) -> None:
    fast, slow = FastJSONRenderer().render(value), JSONRenderer().render(value)
    if value is None:
        assert fast == slow == b""
    else:
        assert json.loads(fast) == json.loads(slow)


def test_times_in_utc_end_with_z_and_separators_of_lines_are_escaped() -> None:
    noon = datetime(2031, 5, 4, 12, 0, 0, 120_000, tzinfo=UTC)
    assert FastJSONRenderer().render(noon) == b'"2031-05-04T12:00:00.120000Z"'
    assert FastJSONRenderer().render("\u2028\u2029") == b'"\\u2028\\u2029"'


def test_unknown_types_are_refused() -> None:
    with pytest.raises(TypeError):
        FastJSONRenderer().render({"value": object()})
