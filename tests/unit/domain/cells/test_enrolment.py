"""What counts of the claims of a cell, and how they differ from what operators fixed."""

from typing import Any

import pytest

from controlplane.domain.cells.enrolment import (
    Claims,
    Enrolment,
    compare_claims,
    decide_held_state,
    describe_hold,
)
from controlplane.domain.state.states import CellState

READY, CORDONED, LOST = CellState.READY, CellState.CORDONED, CellState.LOST
CAPACITY = {"cpu_millis": 4000, "memory_mib": 4096}


def claims(**changed: Any) -> Claims:
    facts = {"pool": "gpu", "labels": {"zone": "a"}, "capacity": CAPACITY, "tags": ["quiet"]}
    return Claims(**{**facts, **changed})


@pytest.mark.parametrize("pool", ["", "gpu"])
def test_cell_that_agrees_has_no_mismatch(pool: str) -> None:
    enrolment = Enrolment("gpu", {"node/room": "7"}, {"cpu_millis": 4000, "gpu": 0})
    effective = compare_claims(enrolment, claims(pool=pool))
    assert effective.mismatch == ""
    assert effective.labels == {"zone": "a", "node/room": "7"}
    assert effective.capacity == CAPACITY


def test_pool_of_another_name_is_a_mismatch() -> None:
    found = compare_claims(Enrolment("default"), claims()).mismatch
    assert found == "it reports pool gpu, but is enrolled in pool default"


def test_protected_label_is_compared_and_never_taken() -> None:
    enrolment = Enrolment("gpu", {"node/room": "7", "node/row": "1"})
    reported = {"node/room": "8", "node/trusted": "yes", "node/row": "1", "zone": "a"}
    effective = compare_claims(enrolment, claims(labels=reported))
    assert effective.labels == {"node/room": "7", "node/row": "1", "zone": "a"}
    assert effective.mismatch == (
        "it reports the label node/room=8, but is enrolled with node/room=7; it reports the label"
        " node/trusted=yes, but is enrolled without this label"
    )


def test_capacity_above_the_ceiling_is_a_mismatch_and_is_limited() -> None:
    enrolment = Enrolment("gpu", {}, {"cpu_millis": 2000, "memory_mib": 8192})
    effective = compare_claims(enrolment, claims())
    assert effective.capacity == {"cpu_millis": 2000, "memory_mib": 4096}
    assert effective.mismatch == (
        "it reports a capacity of 4 cores, but is enrolled with at most 2 cores"
    )


@pytest.mark.parametrize(
    ("fixed", "reported", "effective", "mismatch"),
    [
        (["*"], ["quiet", "ssd?"], ["quiet", "ssd?"], ""),
        (["quiet", "ssd?"], ["ssd?", "quiet"], ["quiet", "ssd?"], ""),
        (["quiet"], [], ["quiet"], ""),
        (
            ["quiet"],
            ["quiet?"],
            ["quiet"],
            "it reports the tags quiet?, but is enrolled with quiet",
        ),
        ([], ["quiet"], [], "it reports the tags quiet, but is enrolled without tags"),
        ([], [], [], ""),
    ],
)
def test_fixed_tags_count_whatever_the_cell_reports(
    fixed: list[str], reported: list[str], effective: list[str], mismatch: str
) -> None:
    found = compare_claims(Enrolment("gpu", fixed_tags=fixed), claims(tags=reported))
    assert (found.tags, found.mismatch) == (effective, mismatch)


def test_text_of_many_differences_is_bounded() -> None:
    labels = {f"node/{number}": "x" * 200 for number in range(99)}
    found = compare_claims(Enrolment("gpu"), claims(labels=labels)).mismatch
    assert len(found) == 1000
    assert len(describe_hold(found)) == 255


def test_claims_are_read_as_they_are_stored() -> None:
    assert Claims.read(claims().as_dict()) == claims()


HELD = describe_hold("old")


@pytest.mark.parametrize(
    ("state", "ordered", "reason", "before", "after", "expected"),
    [
        (READY, READY, "x", "", "", (READY, "x")),
        (READY, READY, "x", "", "new", (CORDONED, describe_hold("new"))),
        (CORDONED, READY, HELD, "old", "new", (CORDONED, describe_hold("new"))),
        (CORDONED, READY, HELD, "old", "", (READY, "its enrolment was changed by op")),
        # Another cause of the state remains.
        (CORDONED, READY, "old wire version", "old", "", (CORDONED, "old wire version")),
        (CORDONED, CORDONED, HELD, "old", "", (CORDONED, HELD)),
        (CellState.QUARANTINED, READY, "x", "old", "", (CellState.QUARANTINED, "x")),
        (CellState.DRAINING, CellState.DRAINING, "x", "", "new", (CellState.DRAINING, "x")),
        (LOST, READY, "x", "old", "new", (LOST, "x")),
    ],
)
def test_state_after_a_change_of_the_enrolment(
    state: CellState,
    ordered: CellState,
    reason: str,
    before: str,
    after: str,
    expected: tuple[CellState, str],
) -> None:
    found = decide_held_state(state, ordered, reason, before=before, after=after, actor="op")
    assert found == expected
