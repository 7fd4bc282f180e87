"""Why a shape waits: the cell that comes closest, what it lacks, and whether it ever will fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.constraints import Constraint, Operator, Tags
from controlplane.domain.placement.model.amounts import describe_shortfall
from controlplane.domain.placement.model.capacity_matrix import CapacityMatrix
from controlplane.domain.placement.model.interfaces import ValidationFailure
from controlplane.domain.placement.model.snapshot import CellFacts
from controlplane.domain.placement.reasons.explain import (
    explain_behind,
    explain_gang,
    explain_misfit,
    explain_tokens,
    explain_violations,
)
from controlplane.domain.state.states import CellState
from tests.unit.domain.placement import pools

CPU, MEMORY = "cpu_millis", "memory_mib"


def cell(name: str, capacity: Mapping[str, int], *types: str, **changes: Any) -> CellFacts:
    kinds = frozenset(types or ("container",))
    return pools.cell(ord(name[0]), name=name, capacity=capacity, task_types=kinds, **changes)


def explain(
    request: Mapping[str, int],
    *cells: CellFacts,
    used: list[dict[str, int]] | None = None,
    unready_cells: Mapping[CellState, int] | None = None,
    **shape: Any,
) -> dict[str, Any]:
    """Return the reason of a shape once so much of the cells is used."""
    held = used or [{} for _ in cells]
    now = [replace(one, used=amounts) for one, amounts in zip(cells, held, strict=True)]
    waited = pools.pool(
        sorted(now, key=lambda one: one.name),
        pools.row(resources=request, **shape),
        unready_cells=unready_cells or {},
    )
    (facts,) = waited.snapshot.shapes
    board = CapacityMatrix(waited.snapshot.cells, (facts,))
    return explain_misfit(facts, waited.snapshot, board, board.usable(facts))


def test_shortfall_lists_resources_by_name() -> None:
    requested = {MEMORY: 10, "gpu": 1, CPU: 5}
    lacks = explain(requested, cell("a", {CPU: 4, MEMORY: 10}))["shortfall"]
    assert list(lacks.items()) == [(CPU, 1), ("gpu", 1)]


def test_shortfall_of_an_over_committed_cell_is_capped_by_the_request() -> None:
    assert explain({CPU: 5}, cell("a", {CPU: 10}), used=[{CPU: 14}])["shortfall"] == {CPU: 5}


@pytest.mark.parametrize(
    ("lacks", "requested", "words"),
    [
        ({CPU: 500}, {CPU: 2000}, "0.5 of 2 cores"),
        ({CPU: 500}, {CPU: 500}, "0.5 cores"),
        ({CPU: 500}, {CPU: 1000, MEMORY: 3}, "0.5 of 1 core"),
        (
            {CPU: 2000, MEMORY: 512},
            {CPU: 2000, MEMORY: 9000},
            "2 cores and 512 of 9000 MiB of memory",
        ),
        ({MEMORY: 4_179_000}, {MEMORY: 9_000_000}, "4179000 of 9000000 MiB of memory"),
        ({"disk_mib": 7, "gpu": 1}, {"disk_mib": 8, "gpu": 1}, "7 of 8 MiB of disk and 1 gpu"),
    ],
)
def test_shortfall_as_text(lacks: dict[str, int], requested: dict[str, int], words: str) -> None:
    assert describe_shortfall(lacks, requested) == words


def test_closest_cell_lacks_the_smallest_fraction_of_its_capacity() -> None:
    # 100 of 1000 is a tenth, 60 of 100 more than a half.
    large, small = cell("large", {CPU: 1000}), cell("small", {CPU: 100})
    reason = explain({CPU: 160}, small, large, used=[{}, {CPU: 940}])
    assert (reason["cell"], reason["shortfall"]) == ("large", {CPU: 100})


def test_distance_of_a_cell_is_that_of_its_scarcest_resource() -> None:
    scarce, even = cell("a", {CPU: 100, MEMORY: 100}), cell("b", {CPU: 100, MEMORY: 100})
    request, used = {CPU: 80, MEMORY: 80}, [{MEMORY: 50}, {CPU: 30, MEMORY: 30}]
    assert explain(request, scarce, even, used=used)["cell"] == "b"


def test_shortfall_of_a_request_that_never_fits_ignores_usage() -> None:
    large, small = cell("large", {CPU: 1000}), cell("small", {CPU: 400})
    for used in ({}, {CPU: 900}):
        reason = explain({CPU: 1200}, large, small, used=[used, {}])
        assert (reason["cell"], reason["shortfall"]) == ("large", {CPU: 200})


def test_cell_without_a_resource_is_farther_than_one_with_some() -> None:
    none, some = cell("a", {CPU: 100}), cell("b", {CPU: 100, "gpu": 4})
    assert explain({"gpu": 5}, none, some)["cell"] == "b"


def test_closest_cell_of_a_tie_is_the_first_by_name() -> None:
    equal_cells = [cell(name, {CPU: 100}) for name in ("c", "a", "b")]
    assert explain({CPU: 150}, *equal_cells)["cell"] == "a"


def test_request_larger_than_every_empty_cell_never_fits() -> None:
    small, large = cell("a", {CPU: 1000}), cell("b", {CPU: 3000})
    never = explain({CPU: 4000}, small, large)
    assert never == {
        "code": "insufficient_resources",
        "text": "larger than every cell of the pool: b comes closest and lacks 1 of 4 cores",
        "cell": "b",
        "shortfall": {CPU: 1000},
        "never_fits": True,
    }
    later = explain({CPU: 2000}, small, large, used=[{}, {CPU: 1500}])
    assert later == {
        "code": "insufficient_resources",
        "text": "no cell has enough free capacity: b comes closest and lacks 0.5 of 2 cores",
        "cell": "b",
        "shortfall": {CPU: 500},
        "never_fits": False,
    }


def test_only_cells_of_the_task_type_are_considered() -> None:
    reason = explain({CPU: 100}, cell("a", {CPU: 99}), cell("b", {CPU: 999}, "process"))
    assert reason["cell"] == "a"


def test_reason_without_a_matching_cell_lists_the_cells_of_the_pool() -> None:
    other = cell("b", {CPU: 999}, "process")
    assert explain(
        {}, other, cell("c", {CPU: 1}, "process"), unready_cells={CellState.LOST: 1}
    ) == {
        "code": "no_cell_matches",
        "text": "none of the 2 ready cells of the pool matches: removed by task type container (2)",
        "ready_cells": 2,
        "unready": {"LOST": 1},
        "removed": {"task type container": 2},
    }
    assert explain({}, unready_cells={CellState.LOST: 1, CellState.CORDONED: 2}) == {
        "code": "no_cell_matches",
        "text": "the pool has no ready cell (2 CORDONED, 1 LOST)",
        "ready_cells": 0,
        "unready": {"CORDONED": 2, "LOST": 1},
        "removed": {},
    }
    assert explain({}) == {
        "code": "no_cell_matches",
        "text": "the pool has no cell",
        "ready_cells": 0,
        "unready": {},
        "removed": {},
    }


def test_gang_reason_has_needed_and_placeable_counts_and_the_cause() -> None:
    assert explain_gang(4, 3, {"text": "no cell has enough free capacity"}) == {
        "code": "waiting_for_gang",
        "text": "its gang starts together: 4 more tasks must be placed together, 3 could be;"
        " no cell has enough free capacity",
        "need": 4,
        "have": 3,
    }
    assert explain_gang(4, 3, None)["text"].endswith("; the other members are not ready yet")


def test_gang_reason_names_the_grouping_label() -> None:
    assert explain_gang(4, 3, None, "zone")["text"] == (
        "its gang starts together: 4 more tasks must be placed together on cells with the same"
        " value of zone, 3 could be; the other members are not ready yet"
    )


def test_no_match_reason_counts_the_cells_removed_by_each_condition() -> None:
    cells = [
        cell("a", {CPU: 9}, "process", labels={"zone": "a"}),
        cell("b", {CPU: 9}, labels={"zone": "b"}),
        cell("c", {CPU: 9}, labels={"zone": "a", "gb": "8"}),
        cell("d", {CPU: 9}, labels={"zone": "a", "gb": "64"}, tags=Tags.read(["big"])),
    ]
    constraints = (
        Constraint("zone", Operator.EQ, ("a",)),
        Constraint("rack", Operator.EXISTS, required=False),
        Constraint("gb", Operator.GE, ("32",)),
    )
    reason = explain({CPU: 1}, *cells, constraints=constraints)
    assert reason["removed"] == {
        "task type container": 1,
        "zone = a": 1,
        "gb >= 32": 1,
        "placement tags none": 1,
    }
    assert reason["text"] == (
        "none of the 4 ready cells of the pool matches: removed by task type container (1),"
        " zone = a (1), gb >= 32 (1), placement tags none (1)"
    )
    assert (
        explain({CPU: 10}, *cells, constraints=constraints, placement_tags=("big",))["cell"] == "d"
    )
    other = explain({CPU: 1}, *cells[1:3], placement_tags=("big", "dry"))
    assert other["removed"] == {"placement tags big, dry": 2}


def test_cells_with_full_build_slots_are_distinguished_from_full_cells() -> None:
    busy = cell("a", {CPU: 9}, start_slots=0)
    assert explain({CPU: 1}, busy, cell("b", {CPU: 9}), used=[{}, {CPU: 9}]) == {
        "code": "build_slots_full",
        "text": "1 cell with room for it already prepares its maximum number of containers",
        "cells": 1,
    }
    twice = explain({CPU: 1}, busy, cell("b", {CPU: 9}, start_slots=0))
    assert twice["text"].startswith("2 cells with room")
    assert explain({CPU: 10}, busy)["code"] == "insufficient_resources"


def test_reason_lists_all_violations_with_the_code_of_the_first() -> None:
    found = explain_violations(
        [
            ValidationFailure("quota_exceeded", "one", {"used": 1}),
            ValidationFailure("other", "two", {"limit": 2}),
        ]
    )
    assert found == {
        "code": "quota_exceeded",
        "text": "one; two",
        "used": 1,
        "violations": [
            {"code": "quota_exceeded", "text": "one", "used": 1},
            {"code": "other", "text": "two", "limit": 2},
        ],
    }


def test_token_shortfall_lists_tokens_by_name() -> None:
    found = explain_tokens({"render": (2, 1, 2), "cad": (0, 3, 2)})
    assert found == {
        "code": "insufficient_tokens",
        "text": "tokens cad: 0 used + 3 requested > 2 of the pool;"
        " tokens render: 2 used + 1 requested > 2 of the pool",
        "tokens": {
            "cad": {"used": 0, "requested": 3, "limit": 2},
            "render": {"used": 2, "requested": 1, "limit": 2},
        },
    }


def test_queue_position_reason_names_the_job_in_front() -> None:
    assert explain_behind(7) == {
        "code": "queue_position",
        "text": "waits behind job 7, which does not fit yet (the pool is strict)",
        "behind": 7,
    }
