"""Changes of phase on the wire: read back as they were written, or refused with their place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.codec import MalformedMessage, compact_json
from controlplane.contract.messages.phases import (
    MAX_PHASES,
    MAX_REPORTED,
    PHASE_CHARS,
    PhaseChange,
    PhaseKind,
    read_phases,
    shorten,
    unite,
)
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState


def change(number: int, text: str = "warming", kind: PhaseKind = PhaseKind.RUNNER) -> PhaseChange:
    return PhaseChange(number, 1000.0 + number, kind, text)


def test_report_with_phases_round_trips() -> None:
    phases = (
        PhaseChange(3, 1.5, PhaseKind.PHASE, Phase.PULLING),
        PhaseChange(4, 2.5, PhaseKind.TRY, "try 1 of 3 failed: pull: no route to host"),
        PhaseChange(9, 3.0, PhaseKind.RUNNER, "step 1"),
    )
    report = AttemptReport("u", 7, TaskState.BUILDING, phases=phases)
    assert AttemptReport.read(report.body()) == report


def test_report_without_phases_has_no_phase_field() -> None:
    assert "phases" not in AttemptReport("u", 7, TaskState.RUNNING).body()


def test_fields_of_a_newer_cell_are_ignored() -> None:
    assert read_phases([[1, 2.0, "phase", "creating", {"more": 1}]]) == (
        PhaseChange(1, 2.0, PhaseKind.PHASE, "creating"),
    )


def test_long_text_is_cut_and_an_invalid_instant_is_clamped() -> None:
    ((first),) = read_phases([[1, -5, "runner", "x\0" * PHASE_CHARS * 2]])
    assert (first.at, first.text) == (0.0, "x" * PHASE_CHARS)


@pytest.mark.parametrize(
    "item",
    [
        None,
        {},
        [],
        [2, 1.0, "phase"],
        ["2", 1.0, "phase", "pulling"],
        [True, 1.0, "phase", "pulling"],
        [2, None, "phase", "pulling"],
        [2, float("nan"), "phase", "pulling"],
        [2, 1.0, "other", "pulling"],
        [2, 1.0, "phase", "sleeping"],
        [2, 1.0, "runner", 5],
        [0, 1.0, "phase", "pulling"],
        [MAX_PHASES + 1, 1.0, "phase", "pulling"],
        [1, 1.0, "phase", "pulling"],
    ],
)
def test_malformed_phase_is_refused_with_its_position(item: Any) -> None:
    body = {**AttemptReport("u", 7, TaskState.BUILDING).body()}
    body["phases"] = [[1, 1.0, "phase", "preparing"], item]
    with pytest.raises(MalformedMessage, match=r"^phases\[1\][. ]"):
        AttemptReport.read(body)


@pytest.mark.parametrize("phases", ["x", {}, 5, [[1, 1.0, "phase", "pulling"]] * 40])
def test_malformed_phase_list_is_refused_by_name(phases: Any) -> None:
    with pytest.raises(MalformedMessage, match=r"^phases "):
        AttemptReport.read({**AttemptReport("u", 7, TaskState.BUILDING).body(), "phases": phases})


@given(st.integers(0, 3 * MAX_REPORTED))
def test_long_phase_list_keeps_the_oldest_and_the_newest(count: int) -> None:
    every = tuple(change(number) for number in range(1, count + 1))
    kept: tuple[PhaseChange, ...] = ()
    for item in every:
        kept = shorten((*kept, item))
    assert len(kept) == min(count, MAX_REPORTED)
    assert kept[:8] == every[:8]
    assert kept[-1:] == every[-1:]
    assert kept[8:] == every[count - len(kept[8:]) :]
    assert read_phases([item.body() for item in kept]) == kept


def test_size_of_the_largest_phase_list_is_bounded() -> None:
    full = tuple(change(200 + n, "\u00e9" * PHASE_CHARS) for n in range(MAX_REPORTED))
    assert len(compact_json([item.body() for item in full])) < 50_000


def test_merged_reports_have_each_phase_once_in_order() -> None:
    first, second = [change(1), change(2), change(3)], [change(2), change(5)]
    assert [item.number for item in unite(second, first)] == [1, 2, 3, 5]
