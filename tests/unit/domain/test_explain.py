"""Why a shape waits: the cell that comes closest, what it lacks, and whether it ever will fit."""

from collections.abc import Mapping
from typing import Any

import pytest

from controlplane.domain.placement.explain import (
    describe_shortfall,
    explain_gang,
    explain_shape,
    free_of,
    shortfall,
)
from controlplane.domain.snapshots import CellFacts, PendingShape, PlacementSnapshot
from controlplane.domain.states import Band, CellState
from tests.unit.domain.facts import NOW

CPU, MEMORY = "cpu_millis", "memory_mib"


def cell(name: str, capacity: Mapping[str, int], *types: str) -> CellFacts:
    kinds = frozenset(types or ("container",))
    return CellFacts(ord(name[0]), name, CellState.READY, "one", capacity, {}, kinds)


def explain(
    request: Mapping[str, int],
    *cells: CellFacts,
    used: list[dict[str, int]] | None = None,
    **snapshot: Any,
) -> dict[str, Any]:
    shape = PendingShape(1, 1, Band.BATCH, 1, request, "container")
    facts = PlacementSnapshot(1, NOW, cells, (shape,), **snapshot)
    return explain_shape(shape, facts, used or [{} for _ in cells])


def test_what_is_lacking_is_told_per_resource_in_order_of_name() -> None:
    assert shortfall({MEMORY: 10, CPU: 5, "gpu": 1}, {CPU: 4, MEMORY: 10}) == {CPU: 1, "gpu": 1}
    assert list(shortfall({"z": 1, "a": 1}, {})) == ["a", "z"]
    assert shortfall({CPU: 5}, {CPU: 5}) == {}


def test_free_is_capacity_less_what_is_held_and_never_below_zero() -> None:
    free = free_of({CPU: 10, MEMORY: 10, "gpu": 3}, {CPU: 4, MEMORY: 11})
    assert free == {CPU: 6, MEMORY: 0, "gpu": 3}


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({CPU: 500}, "0.5 of a core"),
        ({CPU: 2000, MEMORY: 512}, "2 of a core and 512 MiB of memory"),
        ({"disk_mib": 7, "gpu": 1}, "7 MiB of disk and 1 gpu"),
        ({}, "nothing"),
    ],
)
def test_a_shortfall_in_words(lacks: dict[str, int], words: str) -> None:
    assert describe_shortfall(lacks) == words


def test_the_cell_that_comes_closest_lacks_the_least_part_of_what_it_has() -> None:
    # 100 of 1000 is a tenth, 60 of 100 more than a half.
    large, small = cell("large", {CPU: 1000}), cell("small", {CPU: 100})
    reason = explain({CPU: 160}, small, large, used=[{}, {CPU: 940}])
    assert (reason["cell"], reason["shortfall"]) == ("large", {CPU: 100})


def test_a_cell_is_as_far_as_its_scarcest_resource() -> None:
    scarce, even = cell("a", {CPU: 100, MEMORY: 100}), cell("b", {CPU: 100, MEMORY: 100})
    request, used = {CPU: 120, MEMORY: 120}, [{CPU: 0, MEMORY: 30}, {}]
    assert explain(request, scarce, even, used=used)["cell"] == "b"


def test_a_cell_without_any_of_it_is_farther_than_one_with_some() -> None:
    none, some = cell("a", {CPU: 100}), cell("b", {CPU: 100, "gpu": 4})
    assert explain({"gpu": 5}, none, some)["cell"] == "b"


def test_of_cells_that_are_as_close_the_first_by_name_is_told() -> None:
    twins = [cell(name, {CPU: 100}) for name in ("c", "a", "b")]
    assert explain({CPU: 150}, *twins)["cell"] == "a"


def test_what_no_empty_cell_could_hold_never_fits() -> None:
    small, large = cell("a", {CPU: 1000}), cell("b", {CPU: 3000})
    never = explain({CPU: 4000}, small, large)
    assert never == {
        "code": "insufficient_resources",
        "text": "larger than every cell of the pool: b comes closest and lacks 1 of a core",
        "cell": "b",
        "shortfall": {CPU: 1000},
        "never_fits": True,
    }
    later = explain({CPU: 2000}, small, large, used=[{}, {CPU: 1500}])
    assert later == {
        "code": "insufficient_resources",
        "text": "no cell has enough free: b comes closest and lacks 0.5 of a core",
        "cell": "b",
        "shortfall": {CPU: 500},
        "never_fits": False,
    }


def test_only_cells_that_run_the_type_are_looked_at() -> None:
    reason = explain({CPU: 100}, cell("a", {CPU: 99}), cell("b", {CPU: 999}, "process"))
    assert reason["cell"] == "a"


def test_a_pool_without_a_cell_for_the_type_says_what_there_is() -> None:
    other = cell("b", {CPU: 999}, "process")
    assert explain({}, other, other, unready_cells={CellState.LOST: 1}) == {
        "code": "no_cell_matches",
        "text": "none of the 2 ready cells of the pool runs tasks of type container",
        "ready_cells": 2,
        "unready": {"LOST": 1},
    }
    assert explain({}, unready_cells={CellState.LOST: 1, CellState.CORDONED: 2}) == {
        "code": "no_cell_matches",
        "text": "the pool has no ready cell (2 CORDONED, 1 LOST)",
        "ready_cells": 0,
        "unready": {"CORDONED": 2, "LOST": 1},
    }
    assert explain({}) == {
        "code": "no_cell_matches",
        "text": "the pool has no cell",
        "ready_cells": 0,
        "unready": {},
    }


def test_a_gang_says_how_many_it_needs_how_many_could_and_what_hinders_the_rest() -> None:
    assert explain_gang(4, 3, {"text": "no cell has enough free"}) == {
        "code": "waiting_for_gang",
        "text": "its gang starts together: 4 more must be placed at once, 3 could be;"
        " no cell has enough free",
        "need": 4,
        "have": 3,
    }
    assert explain_gang(4, 3, None)["text"].endswith("; the others are not ready yet")
