"""No event of a cell makes Flower take memory without limit."""

from typing import Any

import pytest

from controlplane.limits.flower_events import ATTEMPT, MAX_CHARS, MAX_FIELDS, EventBounds

EVENT: dict[str, Any] = {
    "type": "task-received",
    "hostname": "cell@cell-1",
    "uuid": "u",
    "name": "attempt.job",
    "timestamp": 1.5,
    "clock": 1,
    "pid": None,
}


@pytest.fixture
def bounds() -> EventBounds:
    return EventBounds({"controlplane.ticks.placement"}, max_workers=2)


def test_ordinary_event_is_kept_as_it_is(bounds: EventBounds) -> None:
    assert bounds.bounded(EVENT) == EVENT
    beat = {"type": "worker-heartbeat", "hostname": "cell@cell-1", "loadavg": [0.1, 0.2, 0.3]}
    assert bounds.bounded(beat) == beat


def test_long_text_is_cut(bounds: EventBounds) -> None:
    kept = bounds.bounded({**EVENT, "args": "x" * 1_000_000})
    assert kept == {**EVENT, "args": "x" * MAX_CHARS}


@pytest.mark.parametrize("nested", [["x"], [1] * 4, {"a": {"b": []}}])
def test_nested_value_is_omitted(bounds: EventBounds, nested: object) -> None:
    assert bounds.bounded({**EVENT, "other": nested}) == EVENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "task-invented"},
        {"type": None},
        {"type": []},
        {"hostname": None},
        {"hostname": "x" * 2_000},
        {f"field-{n}": n for n in range(MAX_FIELDS)},
    ],
)
def test_invented_event_is_dropped(bounds: EventBounds, wrong: dict[str, Any]) -> None:
    assert bounds.bounded({**EVENT, **wrong}) is None


def test_number_of_workers_is_limited(bounds: EventBounds) -> None:
    names = [f"cell@{n}" for n in range(4)]
    kept = [bounds.bounded({**EVENT, "hostname": name}) is not None for name in names]
    assert kept == [True, True, False, False]
    assert bounds.bounded({**EVENT, "hostname": names[0]}) is not None


def test_attempts_are_counted_under_one_name(bounds: EventBounds) -> None:
    assert bounds.counted_name("attempt.job") == bounds.counted_name(None) == ATTEMPT
    assert bounds.counted_name("controlplane.ticks.placement") == "controlplane.ticks.placement"
