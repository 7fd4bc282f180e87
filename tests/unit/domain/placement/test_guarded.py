"""Plugins of other people: whatever one does wrong is noted, and the pass goes on without it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from controlplane.domain.placement.cycle.place import place
from controlplane.domain.placement.cycle.plan import PlacementPlan
from controlplane.domain.placement.cycle.plugin_guard import Faults, guard
from controlplane.domain.placement.cycle.prefilter import screen
from controlplane.domain.placement.model.interfaces import (
    CellOffer,
    Queue,
    Request,
    Turn,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.placement.plugins.selectors.dispersed import DispersedSelector
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo
from tests.unit.domain.placement.pools import Outcome, Pool, cell, gang, pool, row

CELLS = [cell(1, cpu=3000), cell(2, cpu=2000)]
WHY = ValidationFailure("closed", "the theatre is closed", {"until": 7})


class StubPlugin:
    """A plugin of any kind that does what it is made with."""

    keeps_place = False
    uses_shares = False

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.answer = answer

    def check(self, request: Request) -> Any:
        return self.answer(request)

    def turns(self, queue: Queue) -> Any:
        return self.answer(queue)

    def select(self, offer: CellOffer, count: int) -> Any:
        return self.answer(offer, count)


def run(waited: Pool, **plugins: Any) -> tuple[PlacementPlan, dict[str, str]]:
    """A pass with other plugins, and the faults that were noted."""
    faults = Faults()
    chosen: dict[str, Any] = {"sequencer": Fifo(), "selector": DispersedSelector(), **plugins}
    validators = chosen.pop("validators", {})
    guarded = guard(
        faults,
        validators=validators,
        **{kind: ("theirs", plugin) for kind, plugin in chosen.items()},
    )
    screen(waited.snapshot, guarded)
    return place(waited.snapshot, waited.facts, guarded, limit=100), faults.found


def waiting() -> Pool:
    """Three rows of two shapes, and a gang of two."""
    return pool(
        CELLS,
        row(1),
        row(2, 2),
        row(3, cpu=500),
        row(4, 2, cpu=100, coscheduled=True),
        gangs={4: gang((4, 2, 2))},
    )


def fail(*_: object) -> Any:
    raise RuntimeError("gone wrong")


# -------------------------------------------------------------------------------- sequencers


def all_rows(queue: Queue) -> Iterator[Turn]:
    for n in range(len(queue.left)):
        yield Turn(np.array([n]), int(queue.left[n]))


def endless(queue: Queue) -> Iterator[Turn]:
    while True:
        yield Turn(np.array([0]), 1)


def writes(queue: Queue) -> Iterator[Turn]:
    queue.shape[:] = 1
    yield from all_rows(queue)


def turn(rows: Any, tasks: Any = 9) -> Callable[[Queue], Iterator[Turn]]:
    return lambda _: iter([Turn(rows, tasks)])


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (fail, "gone wrong"),
        (lambda _: None, "not iterable"),
        (lambda _: [None], "no attribute"),
        (lambda _: [], "waiting rows got no turn"),
        (endless, "placed no task"),
        (writes, "read-only"),
        (turn(np.array([0, 2])), "one shape"),
        (turn(np.array([0, 0])), "each once"),
        (turn(np.array([], dtype=int)), "must have rows"),
        (turn(np.array([-1])), "must have rows"),
        (turn(np.array([99])), "out of bounds"),
        (turn(np.array([[0]])), "must have rows"),
        (turn("nonsense"), "invalid literal"),
        (turn(np.array([0]), "many"), "invalid literal"),
        (turn(np.array([0]), -5), "waiting rows got no turn"),
    ],
)
def test_faulty_sequencer_is_replaced_by_fifo(answer: Any, fault: str) -> None:
    plan, faults = run(waiting(), sequencer=StubPlugin(answer))
    assert fault in faults.pop("sequencer theirs")
    assert faults == {}
    assert Outcome(waiting(), plan).placed == {1: 1, 2: 2, 3: 1, 4: 2}
    assert plan.complete


def test_sequencer_that_fails_midway_keeps_its_first_turns() -> None:
    def stops(queue: Queue) -> Iterator[Turn]:
        yield Turn(np.array([2]), 1)
        raise RuntimeError("gone wrong")

    plan, faults = run(waiting(), sequencer=StubPlugin(stops))
    assert plan.placements.group_ids[0] == 3
    assert plan.count == 6
    assert list(faults) == ["sequencer theirs"]


def test_valid_third_party_sequencer_decides_the_order() -> None:
    waited = pool([cell(1, cpu=1000)], row(1), row(2, cpu=900))
    last = StubPlugin(lambda queue: iter(list(all_rows(queue))[::-1]))
    plan, faults = run(waited, sequencer=last)
    assert (plan.placements.group_ids, faults) == ([2], {})


# --------------------------------------------------------------------------------- selectors


def too_many(offer: CellOffer, count: int) -> Any:
    return offer.room + 1


def overwrites(offer: CellOffer, count: int) -> Any:
    offer.used[:] = 0
    return DispersedSelector().select(offer, count)


@pytest.mark.parametrize(
    "answer",
    [
        fail,
        too_many,
        overwrites,
        lambda offer, count: None,
        lambda offer, count: "nonsense",
        lambda offer, count: [count],
        lambda offer, count: offer.room * 0,
        lambda offer, count: np.array([count + 1, -1]),
        lambda offer, count: np.array([np.nan, 1.0]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_faulty_selector_is_replaced_by_dispersed(answer: Any) -> None:
    plan, faults = run(waiting(), selector=StubPlugin(answer))
    expected, none = run(waiting())
    assert list(faults) == ["selector theirs"]
    assert none == {}
    assert plan.placements == expected.placements


def test_valid_third_party_selector_decides_the_cell() -> None:
    def last(offer: CellOffer, count: int) -> Any:
        given = offer.room * 0
        given[np.flatnonzero(offer.room)[-1]] = 1
        return given

    plan, faults = run(pool(CELLS, row(1)), selector=StubPlugin(last))
    assert (plan.placements.cell_ids, faults) == ([2], {})


# -------------------------------------------------------------------------------- validators


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (fail, "gone wrong"),
        (lambda _: None, "NoneType"),
        (lambda _: ValidationResult("all"), "invalid literal"),  # type: ignore[arg-type]
        (lambda _: ValidationResult(0), "without a violation"),
        (lambda _: ValidationResult(0, ("no",)), "must be a ValidationFailure"),  # type: ignore[arg-type]
        (lambda _: ValidationResult(0, (ValidationFailure("no", None),)), "with a text"),  # type: ignore[arg-type]
        (
            lambda _: ValidationResult(0, (ValidationFailure("no", "no", {"at": object()}),)),
            "not JSON",
        ),
        (
            lambda _: ValidationResult(0, (ValidationFailure("no", "no", {"at": float("nan")}),)),
            "not JSON",
        ),
        (lambda _: ValidationResult(0, (ValidationFailure("no", "a\0b"),)), "NUL"),
    ],
)
def test_faulty_validator_keeps_its_tasks_pending(answer: Any, fault: str) -> None:
    waited = waiting()
    plan, faults = run(waited, validators={"theirs": StubPlugin(answer)})
    assert fault in faults.pop("validator theirs")
    assert faults == {}
    assert plan.count == 0
    assert plan.rejected == ()
    reasons = Outcome(waited, plan).reasons
    assert reasons[1]["code"] == "plugin_failed"
    assert "theirs" in reasons[1]["text"]
    assert reasons[4]["code"] == "waiting_for_gang"


def test_validator_result_is_clamped_to_the_request() -> None:
    plan, faults = run(waiting(), validators={"theirs": StubPlugin(lambda _: ValidationResult(99))})
    assert (plan.count, faults) == (6, {})
    plan, faults = run(
        waiting(), validators={"theirs": StubPlugin(lambda _: ValidationResult(-3, (WHY,)))}
    )
    assert (plan.count, faults) == (0, {})


def test_violation_of_a_third_party_validator_is_the_pending_reason() -> None:
    waited = pool(CELLS, row(1, 2))
    closed = StubPlugin(lambda request: ValidationResult(0, (WHY,)))
    plan, faults = run(waited, validators={"theirs": closed})
    assert (plan.count, faults) == (0, {})
    reason = Outcome(waited, plan).reasons[1]
    assert (reason["code"], reason["text"], reason["until"]) == (
        "closed",
        "the theatre is closed",
        7,
    )


def test_final_violation_rejects_the_task() -> None:
    final = ValidationFailure("never", "not here, not ever", is_final=True)
    plan, _ = run(
        pool(CELLS, row(1)),
        validators={"theirs": StubPlugin(lambda _: ValidationResult(0, (final,)))},
    )
    assert [(item.group_id, item.reason["code"]) for item in plan.rejected] == [(1, "never")]


def test_each_fault_is_recorded_once_and_truncated() -> None:
    faults = Faults()
    faults.note("selector x", "a" * 900)
    faults.note("selector x", "another")
    assert faults.found == {"selector x": "a" * 500}
