"""The cell: orders are idempotent, stops may come first, ends are sent until acknowledged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import (
    GroupSpec,
    Orders,
    RegistrationResult,
    RunAttempt,
    StopAttempt,
    Sync,
)
from controlplane.contract.messages.reports import Goodbye, Heartbeat, Register
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from tests.harness.cell_bench import Bench
from tests.harness.small_disk import SmallDisk, mounted
from workers.agent.cell import MAX_UNACKNOWLEDGED
from workers.agent.final_report import judge_end
from workers.agent.inputs import ScanResult
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import KILLED_OUTSIDE, STOPPED
from workers.cell_attempt import CellAttempt


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def ready(bench: Bench) -> Bench:
    bench.accept()
    return bench


def test_cell_registers_repeatedly_until_accepted(bench: Bench) -> None:
    bench.wait(11)
    assert [type(message) for message in bench.sent] == [Register] * 3
    bench.accept()
    bench.wait(5)
    assert isinstance(bench.sent[-1], Heartbeat)


def test_order_waits_for_the_server_time(bench: Bench) -> None:
    bench.run("u", "sleep", "9")
    assert bench.engine.starts["u"] == 0
    bench.accept()
    assert bench.engine.starts["u"] == 1


def test_stop_cancels_a_waiting_order(bench: Bench) -> None:
    bench.run("u", "sleep", "9")
    bench.stop("u")
    bench.accept()
    assert bench.engine.starts["u"] == 0


def test_attempt_runs_and_its_end_is_reported(ready: Bench) -> None:
    ready.run("u", "sleep", "3", "exit", "4")
    assert ready.states_of("u") == [S.RUNNING]
    ready.wait(3)
    end = ready.reports()[-1]
    assert (end.state, end.exit_code, end.gone) == (S.FAILED, 4, True)
    assert end.finished_at == end.started_at + 3.0  # type: ignore[operator]


def test_duplicate_order_starts_the_attempt_once(ready: Bench) -> None:
    for _ in range(3):
        ready.run("u", "sleep", "5")
    ready.wait(6)
    ready.run("u", "sleep", "5")
    assert ready.engine.starts["u"] == 1


def test_order_after_the_acknowledged_end_starts_nothing(ready: Bench) -> None:
    ready.run("u", "noop")
    ready.wait(5)
    ready.sync(ready.reports()[-1].seq)
    assert ready.cell.journal.find("u") is None
    ready.run("u", "noop")
    assert ready.engine.starts["u"] == 1
    assert ready.reports()[-1].gone


def test_a_late_order_is_refused(ready: Bench) -> None:
    ready.run("u", "noop", start_before=ready.now - 1)
    assert ready.states_of("u") == [S.WORKER_FAILED]
    assert ready.engine.starts["u"] == 0


def test_unknown_task_type_is_refused(ready: Bench) -> None:
    ready.run("u", "noop", task_type="spark")
    assert ready.states_of("u") == [S.WORKER_FAILED]
    assert "spark" in (ready.reports()[-1].message or "")


def test_stop_before_the_order_is_confirmed_and_the_order_refused(ready: Bench) -> None:
    ready.stop("u")
    assert ready.states_of("u") == [S.KILLED]
    assert ready.reports()[-1].gone
    ready.run("u", "noop")
    assert ready.engine.starts["u"] == 0


def test_stop_ends_a_running_attempt(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    ready.stop("u")
    ready.wait(1)
    assert ready.states_of("u")[-1] is S.KILLED


def test_forced_stop_does_not_wait_for_the_grace_period(ready: Bench) -> None:
    ready.run("u", "deaf", "sleep", "60")
    ready.stop("u")
    ready.wait(1)
    assert ready.states_of("u")[-1] is S.RUNNING
    ready.stop("u", force=True)
    assert ready.states_of("u")[-1] is S.KILLED


def test_unacknowledged_report_is_sent_again(ready: Bench) -> None:
    ready.run("u", "noop")
    ready.wait(5)
    before = len(ready.reports())
    ready.sync(0)
    assert len(ready.reports()) == before + 1
    ready.wait(5)
    ready.sync(ready.reports()[-1].seq)
    ready.wait(5)
    ready.sync(ready.reports()[-1].seq)
    assert len(ready.reports()) == before + 1


def test_acknowledged_start_does_not_acknowledge_the_end(ready: Bench) -> None:
    ready.run("u", "sleep", "8")
    ready.wait(5)
    (running,) = ready.reports()
    ready.now += 3.0
    ready.driver.advance(ready.now)
    for event in ready.events:
        ready.cell.note(event, ready.moment)
    ready.events.clear()
    ready.sync(running.seq)
    assert ready.cell.journal.memory.attempts["u"].end is not None
    assert "u" not in ready.cell.journal.memory.done


def test_heartbeat_lists_running_but_not_ended_attempts(ready: Bench) -> None:
    ready.run("long", "sleep", "60")
    ready.run("short", "noop")
    ready.wait(5)
    beat = next(m for m in reversed(ready.sent) if isinstance(m, Heartbeat))
    assert [held.uid for held in beat.held] == ["long"]


def count_beats(bench: Bench) -> int:
    """Return the number of heartbeats so far."""
    return sum(isinstance(message, Heartbeat) for message in bench.sent)


def run_many(bench: Bench, count: int) -> None:
    """Run attempts that end at once."""
    for number in range(count):
        bench.run(f"u{number}", "noop")


@pytest.mark.parametrize("count", [MAX_UNACKNOWLEDGED, MAX_UNACKNOWLEDGED + 1])
def test_more_unacknowledged_reports_than_the_limit_hasten_a_heartbeat(
    ready: Bench, count: int
) -> None:
    ready.wait(5)
    answered = ready.last_seq
    ready.sync(0)
    run_many(ready, count)
    before = count_beats(ready)
    ready.wait(0.9)
    assert count_beats(ready) == before
    ready.wait(0.1)
    is_early = count > MAX_UNACKNOWLEDGED
    assert count_beats(ready) == before + is_early
    newest = ready.last_seq
    ready.wait(1)
    ready.last_seq = answered  # an old answer, which is not that of the early heartbeat
    ready.sync(0)
    ready.wait(2)
    assert count_beats(ready) == before + is_early
    if is_early:
        ready.last_seq = newest
        ready.sync(0)
        ready.wait(1)
        assert count_beats(ready) == before + 2
        ready.sync(ready.reports()[-1].seq)
        ready.wait(3)
        assert count_beats(ready) == before + 2


def test_attempts_of_a_killed_process_are_adopted_by_its_successor(ready: Bench) -> None:
    ready.run("runs on", "sleep", "30")
    ready.run("ends meanwhile", "sleep", "2")
    ready.now += 5
    incarnation = ready.cell.incarnation
    ready.boot()
    assert ready.cell.incarnation == incarnation
    ready.accept()
    ready.wait(30)
    assert ready.states_of("ends meanwhile")[-1] is S.SUCCEEDED
    assert ready.states_of("runs on")[-1] is S.SUCCEEDED
    assert max(ready.engine.starts.values()) == 1


def test_unacknowledged_end_survives_a_restart(ready: Bench) -> None:
    ready.run("u", "noop")
    ready.boot()
    ready.sent.clear()
    ready.accept()
    assert ready.states_of("u") == [S.SUCCEEDED]


def test_stop_survives_a_restart(ready: Bench) -> None:
    ready.run("u", "deaf", "sleep", "60")
    ready.stop("u")
    ready.boot()
    ready.accept()
    ready.wait(12)
    assert ready.states_of("u")[-1] is S.KILLED


def test_container_unknown_to_the_journal_is_removed(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    (ready.folder / "journal").write_bytes(b"")
    ready.boot()
    assert not ready.engine.lives


def test_draw_anew_stops_all_attempts_and_starts_a_new_incarnation(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    ready.wait(5)
    old = ready.cell.incarnation
    ready.sync(0, draw_anew=True)
    ready.run("v", "noop")
    ready.wait(10)
    assert not ready.engine.running(ready.now)
    assert ready.engine.starts["v"] == 0
    assert ready.cell.incarnation != old
    assert isinstance(ready.sent[-1], Register)
    # Its last words, under its old name: that the container is gone.
    last = [report for report in ready.reports() if report.uid == "u"][-1]
    assert (last.state, last.gone) == (S.KILLED, True)


def test_answer_to_an_older_registration_is_ignored(bench: Bench) -> None:
    old = bench.cell._register_seq
    bench.wait(5)
    bench.deliver(RegistrationResult("draw_anew", "", bench.now, 30.0, 5.0, old).body())
    assert not bench.cell.is_changing_incarnation


def test_answer_to_a_heartbeat_of_an_earlier_process_is_ignored(ready: Bench) -> None:
    """It is signed, and of this incarnation; but the registration is newer."""
    ready.run("u", "sleep", "60")
    ready.wait(5)
    acked = ready.cell.reporter.acked
    orders = Orders(stops=(StopAttempt("u", "cancelled", 0.0, True),))
    facts = {"server_time": ready.now, "lease_seconds": 30.0, "heartbeat_seconds": 5.0}
    late = [
        Sync(ready.last_seq, acked=1 << 62, orders=orders, **facts).body(),
        Sync(ready.last_seq, acked=acked, draw_anew=True, **facts).body(),
    ]
    ready.boot()
    ready.accept()
    for body in late:
        ready.deliver(body)
    assert ready.states_of("u")[-1] is S.RUNNING
    assert ready.cell.reporter.acked < 1 << 62
    assert not ready.cell.is_changing_incarnation


@pytest.mark.parametrize("text", ["", "{}", "null", '{"v":1,"cell":"a"}'])
def test_malformed_order_is_dropped_without_blocking_others(ready: Bench, text: str) -> None:
    ready.round(text)
    ready.run("u", "noop")
    assert ready.engine.starts["u"] == 1


@pytest.mark.parametrize("order", [{"start_before": 1.0}, {"task_type": "spark"}])
def test_refused_order_is_reported_never_created_after_a_restart_too(
    ready: Bench, order: dict[str, Any]
) -> None:
    for _ in range(2):
        ready.run("u", "noop", **order)
    ready.boot()
    ready.accept()
    ready.run("u", "noop")
    reports = ready.reports()
    assert [report.never_created for report in reports] == [True] * 3
    assert reports[-1].message == "ended here before"


def test_order_refused_during_evacuation_is_reported_never_created(ready: Bench) -> None:
    ready.cell.evacuate()
    ready.run("u", "noop")
    assert ready.reports()[-1].never_created


def test_stop_before_the_order_is_reported_never_created(ready: Bench) -> None:
    for _ in range(2):
        ready.stop("u")
    ready.run("u", "noop")
    assert [report.never_created for report in ready.reports()] == [True] * 3


def test_stop_before_the_first_engine_scan_is_not_reported_never_created(
    bench: Bench,
) -> None:
    bench.is_engine_away = True
    bench.boot()
    bench.accept()
    bench.stop("u")
    assert not bench.reports()[-1].never_created


def test_container_missing_from_the_journal_is_not_reported_never_created(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    (ready.folder / "journal").write_bytes(b"")
    ready.boot()
    ready.accept()
    ready.stop("u")
    assert not ready.reports()[-1].never_created


def test_repeated_order_for_a_finished_attempt_is_not_never_created(ready: Bench) -> None:
    ready.run("u", "noop")
    ready.wait(5)
    ready.sync(ready.reports()[-1].seq)
    ready.run("u", "noop")
    ready.stop("u")
    assert not any(report.never_created for report in ready.reports())


def test_attempt_stopped_while_building_is_reported_never_created(ready: Bench) -> None:
    ready.run("u", "build", "9", "sleep", "9")
    ready.stop("u")
    ready.wait(1)
    assert ready.reports()[-1].never_created
    assert ready.engine.starts["u"] == 0
    ready.boot()
    ready.accept()
    assert ready.reports()[-1].never_created
    ready.wait(5)
    ready.sync(ready.reports()[-1].seq)
    ready.run("u", "noop")
    assert ready.reports()[-1].never_created


def test_attempt_that_crashed_the_cell_is_not_reported_never_created(ready: Bench) -> None:
    ready.run("u", "build", "99")
    for _ in range(3):
        ready.boot()
    ready.accept()
    assert ready.states_of("u")[-1] is S.WORKER_FAILED
    assert not ready.reports()[-1].never_created


def test_evacuation_preempts_all_attempts_and_refuses_new_orders(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    ready.cell.evacuate()
    ready.round()
    assert ready.cell.is_empty
    assert ready.states_of("u")[-1] is S.PREEMPTED
    ready.run("v", "noop")
    assert ready.states_of("v") == [S.WORKER_FAILED]


@pytest.mark.parametrize(
    ("is_stopped", "is_moving", "state"),
    [(False, True, S.PREEMPTED), (True, True, S.KILLED), (False, False, S.KILLED)],
)
def test_exit_code_0_after_an_ordered_stop_is_not_a_success(
    is_stopped: bool, is_moving: bool, state: S
) -> None:
    book = CellAttempt(RunAttempt("u", 1, 1, 0, 1, 0.0), GroupSpec(1, 1, "job", "main", 1))
    book.stop = StopAttempt("u", "cancelled") if is_stopped else None
    book.is_moving = is_moving
    event = EndedEvent("u", 1.0, exit_code=0, reason=STOPPED)
    assert judge_end(book, event).state is state
    own = EndedEvent("u", 1.0, exit_code=0)
    assert judge_end(book, own).state is S.SUCCEEDED


@pytest.mark.parametrize("is_moving", [False, True])
def test_kill_during_an_ordered_stop_is_not_reported_as_outside(is_moving: bool) -> None:
    book = CellAttempt(RunAttempt("u", 1, 1, 0, 1, 0.0), GroupSpec(1, 1, "job", "main", 1))
    book.is_moving, book.stop = is_moving, None if is_moving else StopAttempt("u", "cancelled")
    killed = EndedEvent("u", 1.0, 137, FailureKind.OUTSIDE, KILLED_OUTSIDE, "killed from outside")
    report = judge_end(book, killed)
    assert (report.state, report.failure_kind, report.reason, report.message) == (
        S.PREEMPTED if is_moving else S.KILLED,
        None,
        STOPPED,
        "stopped by order",
    )


def test_interrupted_evacuation_is_finished_by_the_next_process(ready: Bench) -> None:
    ready.run("u", "deaf", "sleep", "60")
    ready.cell.evacuate()
    ready.round()
    ready.journals.compact()  # it is remembered however often the file is written anew
    for _ in range(2):
        ready.boot()
    ready.accept()
    ready.wait(30)
    assert ready.states_of("u")[-1] is S.PREEMPTED


def test_attempt_ended_between_processes_of_an_evacuation_is_preempted(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    ready.cell.evacuate()
    ready.journals.sync()
    ready.cell.act()
    assert ready.engine.running(ready.now) == 0
    ready.boot()
    ready.accept()
    assert ready.states_of("u")[-1] is S.PREEMPTED


def test_goodbye_carries_the_expected_restart_time(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    ready.cell.leave(ready.moment, expected_seconds=120)
    ready.round()
    assert Goodbye(120) in ready.sent
    assert ready.engine.running(ready.now) == 1


def test_attempt_that_crashes_the_cell_repeatedly_is_refused(
    ready: Bench,
) -> None:
    ready.run("u", "sleep", "60")
    # As if each process was killed before the driver reported an event of the attempt.
    ready.cell.journal.memory.attempts["u"].started_at = None
    ready.journals.compact()
    for _ in range(3):
        ready.stores[-1].sync()
        lines = (ready.folder / "journal").read_bytes()
        kept = [line for line in lines.splitlines(keepends=True) if b'"start"' not in line]
        (ready.folder / "journal").write_bytes(b"".join(kept))
        ready.boot()
    ready.accept()
    assert ready.states_of("u")[-1] is S.WORKER_FAILED


# ------------------------------------------------------------------ a full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def cramped(disk: SmallDisk) -> Iterator[Bench]:
    """On a disk of 4 MB, of which the journal keeps so much room ahead."""
    bench = Bench(disk.folder, reserve_bytes=32 << 10, min_free_bytes=512 << 10)
    bench.accept()
    yield bench
    bench.close()


def last_beat(bench: Bench) -> Heartbeat:
    bench.wait(5)
    beat = next(m for m in reversed(bench.sent) if isinstance(m, Heartbeat))
    bench.sync(max((r.seq for r in bench.reports()), default=0))
    return beat


def test_full_disk_refuses_new_orders_but_reports_ends_until_freed(
    cramped: Bench, disk: SmallDisk
) -> None:
    cramped.run("u", "sleep", "7")
    disk.fill()
    assert last_beat(cramped).unfit == "the disk of its folder is full"
    cramped.run("v", "noop")
    refused = cramped.reports()[-1]
    assert (refused.state, refused.never_created) == (S.WORKER_FAILED, True)
    assert refused.message == "the cell takes no new work: the disk of its folder is full"
    assert last_beat(cramped).held == ()
    assert cramped.states_of("u")[-1] is S.SUCCEEDED
    disk.clear()
    assert last_beat(cramped).unfit == ""
    cramped.run("w", "noop")
    assert cramped.states_of("w")[-1] is S.SUCCEEDED
    cramped.run("v", "noop")
    assert cramped.engine.starts["v"] == 0


def test_stuck_journal_delays_reports_but_not_heartbeats_and_stops(
    cramped: Bench, disk: SmallDisk
) -> None:
    for uid in ("ends", "stopped", "deaf"):
        cramped.run(uid, *(["deaf"] if uid == "deaf" else []), "sleep", "9")
    disk.fill()
    number = 0
    while not cramped.journals.is_stuck:
        # What is noted of it fills the room that was kept.
        cramped.stop(f"{number}" * 60)
        number += 1
    count = len(cramped.reports())
    cramped.stop("stopped")
    assert cramped.engine.running(cramped.now) == 2
    before = sum(isinstance(m, Heartbeat) for m in cramped.sent)
    cramped.wait(10)
    assert sum(isinstance(m, Heartbeat) for m in cramped.sent) > before
    assert len(cramped.reports()) == count
    cramped.run("late", "noop")
    disk.clear()
    cramped.wait(5)
    states = {uid: cramped.states_of(uid)[-1] for uid in ("ends", "stopped", "deaf", "late")}
    assert states == {
        "ends": S.SUCCEEDED, "stopped": S.KILLED, "deaf": S.SUCCEEDED, "late": S.WORKER_FAILED
    }  # fmt: skip
    assert cramped.engine.starts["late"] == 0


def test_cell_killed_on_a_full_disk_loses_no_reported_state(
    cramped: Bench, disk: SmallDisk
) -> None:
    cramped.run("ended", "noop")
    cramped.run("runs", "sleep", "30")
    disk.fill()
    cramped.run("ends full", "noop")
    cramped.boot()
    cramped.accept()
    assert cramped.cell.journal.find("runs") is not None
    cramped.wait(30)
    assert cramped.states_of("ended")[-1] is S.SUCCEEDED
    assert cramped.states_of("runs")[-1] is S.SUCCEEDED
    assert cramped.engine.starts["runs"] == 1


# ------------------------------------------------------------------ what lies about


def test_scan_removes_unknown_containers_and_keeps_known_ones(ready: Bench) -> None:
    ready.run("known", "sleep", "60")
    ready.run("ended", "noop")
    ready.engine.lives["stranger"] = ready.engine.lives["known"]
    seen = ScanResult(("known", "ended", "stranger"), ("known", "folder"))
    ready.cell.note(seen, ready.moment)
    ready.round()
    assert set(ready.engine.lives) == {"known"}
    # It was started once, by whomever: that was enough.
    ready.run("stranger", "noop")
    assert ready.engine.starts["stranger"] == 0
    ready.run("folder", "noop")
    assert ready.engine.starts["folder"] == 1


def test_scan_older_than_the_order_does_not_end_the_attempt(ready: Bench) -> None:
    before = ScanResult((), ())
    ready.run("u", "sleep", "60")
    ready.cell.note(before, ready.moment)
    ready.round()
    assert ready.engine.running(ready.now) == 1


# ------------------------------------------------------------------ evacuation, clocks


def test_forced_evacuation_does_not_wait_for_the_grace_period(ready: Bench) -> None:
    ready.run("u", "deaf", "sleep", "60")
    ready.cell.evacuate()
    ready.round()
    assert not ready.cell.is_empty
    ready.cell.evacuate(force=True)
    ready.round()
    assert ready.states_of("u")[-1] is S.PREEMPTED


def test_clock_offset_is_reported_and_corrected_in_reports(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ahead=40.0)
    bench.accept()
    bench.run("u", "sleep", "3")
    bench.wait(5)
    (beat,) = [m for m in bench.sent if isinstance(m, Heartbeat)][-1:]
    assert beat.clock_ahead == pytest.approx(40.0, abs=0.1)
    end = bench.reports()[-1]
    assert end.started_at == pytest.approx(1000.0, abs=0.1)
    assert end.finished_at == pytest.approx(1003.0, abs=0.1)
    bench.close()
