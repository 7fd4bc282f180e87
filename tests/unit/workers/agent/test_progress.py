"""A cell reports every phase of an attempt once, whatever restarts, and in few messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.phases import MAX_PHASES, MAX_REPORTED, PhaseChange, PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from tests.harness.cell_bench import Bench
from workers.agent.progress import LATEST_SECONDS, MAX_PREPARING, QUIET_SECONDS
from workers.attempt.events import (
    BuildingEvent,
    DriverEvent,
    EndedEvent,
    ReconciledEvent,
    StageFailedEvent,
    StartedEvent,
)
from workers.journal import JournalFile
from workers.journal_file import FileStore


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.accept()
    bench.run("u", "sleep", "999")
    bench.sent.clear()
    yield bench
    bench.close()


def note(bench: Bench, *events: DriverEvent) -> None:
    for event in events:
        bench.cell.note(event, bench.moment)
    bench.round()


def enter(bench: Bench, *phases: Phase) -> None:
    note(bench, *(BuildingEvent("u", phase) for phase in phases))


def last(bench: Bench) -> AttemptReport:
    return bench.reports()[-1]


def texts(report: AttemptReport) -> list[str]:
    return [change.text for change in report.phases]


def acknowledge(bench: Bench) -> None:
    """The control plane has everything up to now."""
    number = last(bench).seq
    bench.wait(5)
    bench.sync(number)


BUILD = (Phase.PREPARING, Phase.PULLING, Phase.PREPARING, Phase.CREATING)


@pytest.fixture
def built(bench: Bench) -> Bench:
    """The attempt began anew as far as its book goes: the memory driver started it at once."""
    book = bench.cell.journal.find("u")
    assert book is not None
    book.state = S.ASSIGNED
    return bench


def test_short_attempt_is_one_report_with_all_its_phases(built: Bench) -> None:
    enter(built, *BUILD)
    assert built.reports() == []
    note(built, StartedEvent("u", built.now), EndedEvent("u", built.now, exit_code=0))
    assert [report.state for report in built.reports()][-1] is S.SUCCEEDED
    assert texts(last(built)) == list(BUILD)
    assert [change.number for change in last(built).phases] == [1, 2, 3, 4]


def test_long_phase_is_reported_while_it_lasts(built: Bench) -> None:
    enter(built, Phase.PREPARING, Phase.CREATING)
    assert built.cell.wakes_at <= built.now + QUIET_SECONDS
    built.wait(QUIET_SECONDS)
    assert (last(built).state, last(built).phase) == (S.BUILDING, Phase.CREATING)
    assert texts(last(built)) == ["preparing", "creating"]
    count = len(built.reports())
    built.wait(4)
    assert len(built.reports()) == count


@pytest.fixture
def line(bench: Bench) -> list[str]:
    """A hundred attempts that wait in the cell for their turn."""
    uids = [f"w{n:02d}" for n in range(100)]
    for uid in uids:
        bench.run(uid, "sleep", "999")
        book = bench.cell.journal.find(uid)
        assert book is not None
        book.state = S.ASSIGNED
    bench.round()
    bench.sent.clear()
    note(bench, *(BuildingEvent(uid, Phase.PREPARING) for uid in uids))
    return uids


def test_queued_attempts_are_reported_in_batches_oldest_first(
    bench: Bench, line: list[str]
) -> None:
    bench.wait(QUIET_SECONDS)
    assert [report.uid for report in bench.reports()] == line[:MAX_PREPARING]
    assert bench.cell.wakes_at == bench.now + QUIET_SECONDS
    bench.wait(QUIET_SECONDS)
    assert [report.uid for report in bench.reports()] == line[: 2 * MAX_PREPARING]
    bench.wait(10)
    assert [report.uid for report in bench.reports()] == line


def test_queued_attempts_do_not_delay_reports_of_later_phases(
    bench: Bench, line: list[str]
) -> None:
    note(bench, BuildingEvent(line[-1], Phase.CREATING))
    note(bench, StageFailedEvent(line[-2], "try 1 of 3 failed: pull: no answer", bench.now))
    note(bench, StartedEvent(line[-3], bench.now))
    note(bench, EndedEvent(line[-3], bench.now, exit_code=0))
    bench.wait(QUIET_SECONDS)
    reports = {report.uid: report for report in bench.reports()}
    assert set(reports) == {*line[:MAX_PREPARING], *line[-3:]}
    assert texts(reports[line[-1]]) == ["preparing", "creating"]
    assert (reports[line[-3]].state, texts(reports[line[-3]])) == (S.SUCCEEDED, ["preparing"])
    bench.wait(10)
    assert sorted(report.uid for report in bench.reports() if report.state is S.BUILDING) == [
        uid for uid in line if uid != line[-3]
    ]


def test_every_queued_attempt_is_reported_before_its_order_expires(
    bench: Bench,
) -> None:
    uids = [f"w{n:04d}" for n in range(1500)]
    began = bench.now
    for uid in uids:
        bench.run(uid, "build", "3600", "0", start_before=began + 60)
    bench.wait(LATEST_SECONDS + 2)
    assert {report.uid for report in bench.reports()} == set(uids)
    assert bench.now < began + 30


def test_order_near_its_start_deadline_is_reported_ahead_of_the_queue(
    bench: Bench, line: list[str]
) -> None:
    bench.run("late", "build", "3600", "0", start_before=bench.now + 20)
    bench.wait(QUIET_SECONDS)
    assert "late" in {report.uid for report in bench.reports()}


def test_attempts_ended_in_the_queue_take_no_batch_slot(bench: Bench, line: list[str]) -> None:
    note(bench, *(EndedEvent(uid, bench.now, exit_code=1) for uid in line[:50]))
    bench.sent.clear()
    bench.wait(QUIET_SECONDS)
    assert [report.uid for report in bench.reports()] == line[50 : 50 + MAX_PREPARING]


def test_leaving_cell_reports_all_queued_attempts(bench: Bench, line: list[str]) -> None:
    bench.cell.leave(bench.moment, expected_seconds=60)
    bench.round()
    assert [report.uid for report in bench.reports()] == line


def test_phase_change_carries_the_time_of_its_event(built: Bench) -> None:
    note(
        built,
        BuildingEvent("u", Phase.PREPARING, at=900.25),
        BuildingEvent("u", Phase.CREATING, at=901.5),
    )
    note(built, StageFailedEvent("u", "try 1 of 3 failed: create: no answer", 902.0))
    note(built, BuildingEvent("u", Phase.CHECKING, at=901.0))
    built.wait(1)
    assert [(change.at, change.kind) for change in last(built).phases] == [
        (900.25, PhaseKind.PHASE),
        (901.5, PhaseKind.PHASE),
        (902.0, PhaseKind.TRY),
        (902.0, PhaseKind.PHASE),
    ]


def test_progress_within_a_phase_is_not_a_phase_change(built: Bench) -> None:
    note(built, *(BuildingEvent("u", Phase.PULLING, percent) for percent in range(100)))
    built.wait(1)
    assert (last(built).progress, texts(last(built))) == (99, ["pulling"])


def test_new_runner_phase_is_a_change_and_a_repeated_one_is_not(bench: Bench) -> None:
    for word in ("queued", "queued", "warming", "step 1", "step 1", "queued"):
        note(bench, ReconciledEvent("u", word, {}))
    assert texts(last(bench)) == ["queued", "warming", "step 1", "queued"]


def test_changes_are_reported_until_they_are_acknowledged(built: Bench) -> None:
    enter(built, Phase.PREPARING)
    built.wait(1)
    enter(built, Phase.PULLING)
    built.wait(1)
    assert texts(last(built)) == ["preparing", "pulling"]
    acknowledge(built)
    enter(built, Phase.CREATING)
    built.wait(1)
    assert texts(last(built)) == ["creating"]
    assert last(built).phases[0].number == 3


def test_changes_after_the_acknowledged_report_are_kept(built: Bench) -> None:
    enter(built, Phase.PREPARING)
    built.wait(1)
    number = last(built).seq
    enter(built, Phase.PULLING, Phase.PREPARING)
    built.wait(5)
    built.sync(number)
    note(built, StartedEvent("u", built.now))
    assert texts(last(built)) == ["pulling", "preparing"]


@pytest.mark.parametrize("compacted", [False, True])
def test_restarted_cell_neither_loses_nor_repeats_phase_changes(
    built: Bench, compacted: bool
) -> None:
    enter(built, Phase.PREPARING, Phase.PULLING)
    built.wait(1)
    if compacted:
        built.journals.compact()
    built.boot()
    built.accept()
    book = built.cell.journal.find("u")
    assert book is not None
    book.state = S.ASSIGNED
    enter(built, Phase.PULLING, Phase.CREATING)
    built.wait(1)
    assert [(c.number, c.text) for c in last(built).phases] == [
        (1, "preparing"),
        (2, "pulling"),
        (3, "creating"),
    ]


def test_change_numbers_continue_after_a_restart_with_all_acknowledged(built: Bench) -> None:
    note(built, ReconciledEvent("u", "queued", {}), ReconciledEvent("u", "step 1", {"n": 1}))
    acknowledge(built)
    built.journals.compact()
    built.boot()
    built.accept()
    note(built, ReconciledEvent("u", "step 1", {"n": 1}), ReconciledEvent("u", "step 2", {"n": 2}))
    assert (last(built).phases[-1].number, texts(last(built))[-1]) == (3, "step 2")
    assert texts(last(built)).count("step 2") == 1


def test_phase_changes_are_journaled_before_they_are_reported(built: Bench) -> None:
    enter(built, Phase.PREPARING)
    built.wait(1)
    reported = last(built).phases
    found = JournalFile(FileStore(built.folder / "journal")).journal("a")
    assert found.memory.attempts["u"].phases == reported


def test_leaving_cell_reports_pending_phase_changes(built: Bench) -> None:
    enter(built, Phase.PREPARING)
    built.cell.leave(built.moment, expected_seconds=10)
    built.round()
    assert texts(last(built)) == ["preparing"]


def test_oldest_and_newest_of_too_many_changes_are_reported(bench: Bench) -> None:
    for number in range(1, 101):
        note(bench, ReconciledEvent("u", f"step {number}", {}))
    numbers = [change.number for change in last(bench).phases]
    assert len(numbers) == MAX_REPORTED
    assert numbers[:8] == list(range(1, 9))
    assert numbers[-1] == 100


def test_number_of_phase_changes_per_attempt_is_limited(bench: Bench) -> None:
    for number in range(1, MAX_PHASES + 50):
        note(bench, ReconciledEvent("u", f"step {number}", {}))
    assert last(bench).phases[-1].number == MAX_PHASES
    assert last(bench).plugin_phase == f"step {MAX_PHASES + 49}"


def test_change_times_are_corrected_by_the_clock_offset(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ahead=3600.0)
    bench.accept()
    bench.run("u", "sleep", "999")
    note(bench, ReconciledEvent("u", "step 1", {}, bench.moment.wall))
    for _ in range(3):
        bench.wait(5)
        bench.sync(0)
    note(bench, ReconciledEvent("u", "step 2", {}, bench.moment.wall))
    found = last(bench).phases[-1]
    assert isinstance(found, PhaseChange)
    assert abs(found.at - bench.now) < 1
    bench.close()
