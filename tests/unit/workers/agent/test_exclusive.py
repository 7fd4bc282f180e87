"""Exclusive attempts of a cell: watched before they start, ended before the lease is over."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt, StopAttempt
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from tests.harness.cell_bench import Bench
from workers.agent.final_report import judge_end
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import LEASE_OVER, STOPPED, TIMEOUT
from workers.cell_attempt import CellAttempt
from workers.guard.local import LocalGuardLink
from workers.guard.watchlist import Watchlist


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.accept()
    yield bench
    bench.close()


def run(bench: Bench, uid: str, *command: str, **rest: Any) -> None:
    bench.run(uid, *(command or ("sleep", "1000")), exclusive=True, **rest)


def test_exclusive_attempt_is_on_the_watchlist_from_start_to_end(
    bench: Bench,
) -> None:
    run(bench, "u", "sleep", "3")
    bench.run("other", "sleep", "9")
    assert list(bench.guard.read().attempts) == ["u"]
    assert bench.engine.starts["u"] == 1
    bench.wait(4)
    assert bench.states_of("u")[-1] is S.SUCCEEDED
    assert not bench.guard.read().attempts


def test_renewed_lease_keeps_exclusive_attempts_running(bench: Bench) -> None:
    run(bench, "u", "sleep", "100")
    for _ in range(21):
        bench.wait(5)
        bench.sync(0)
    assert bench.states_of("u")[-1] is S.SUCCEEDED


def test_lease_expiry_ends_exclusive_attempts_only(bench: Bench) -> None:
    run(bench, "obedient")
    run(bench, "deaf", "deaf", "sleep", "1000")
    bench.run("other", "sleep", "1000")
    bench.wait(30)
    assert [life.launch.uid for life in bench.engine.lives.values()] == ["other"]
    for uid in ("obedient", "deaf"):
        *_, end = (report for report in bench.reports() if report.uid == uid)
        assert (end.state, end.failure_kind, end.reason) == (
            S.WORKER_FAILED,
            FailureKind.OUTSIDE,
            LEASE_OVER,
        )
        assert end.gone
        assert not end.never_created


def test_lease_counts_from_the_time_the_heartbeat_was_sent(bench: Bench) -> None:
    run(bench, "u", stop_grace_seconds=0.0)
    bench.wait(5)
    sent = bench.now
    bench.now += 4
    bench.sync(0)
    assert bench.guard.read().attempts["u"].deadline == sent + 30


@pytest.mark.parametrize(
    ("reason", "is_stopped", "is_moving", "state"),
    [
        (None, False, False, S.WORKER_FAILED),
        (None, True, False, S.KILLED),
        (None, False, True, S.PREEMPTED),
        (STOPPED, True, False, S.KILLED),
        (TIMEOUT, False, False, S.KILLED),
    ],
)
def test_exit_code_0_after_fencing_is_not_a_success(
    reason: str | None, is_stopped: bool, is_moving: bool, state: S
) -> None:
    book = CellAttempt(RunAttempt("u", 1, 1, 0, 1, 0.0), GroupSpec(1, 1, "job", "main", 1))
    book.stop = StopAttempt("u", "cancelled") if is_stopped else None
    book.is_moving = is_moving
    event = EndedEvent("u", 1.0, exit_code=0, reason=reason)
    assert judge_end(book, event, is_fenced=True).state is state


def test_exclusive_order_near_lease_expiry_is_refused(bench: Bench) -> None:
    bench.wait(19)
    run(bench, "u")
    report = bench.reports()[-1]
    assert (report.state, report.reason) == (S.WORKER_FAILED, "refused")
    assert report.never_created
    assert "lease" in (report.message or "")
    bench.run("other", "sleep", "9")
    assert bench.engine.starts["other"] == 1


def test_start_delayed_past_lease_expiry_does_not_happen(bench: Bench) -> None:
    run(bench, "u", "build", "25", "sleep", "1000")
    bench.wait(30)
    assert bench.states_of("u")[-1] is S.WORKER_FAILED
    assert not bench.engine.running(bench.now)
    bench.wait(30)
    assert not bench.engine.running(bench.now)


def test_lease_deadline_survives_a_process_restart(bench: Bench) -> None:
    run(bench, "u")
    deadline = bench.guard.read().attempts["u"].deadline
    bench.wait(3)
    bench.boot()
    assert bench.guard.read().attempts["u"].deadline == deadline
    bench.accept()
    assert bench.guard.read().attempts["u"].deadline == bench.now + 30


def test_attempt_ended_by_the_guard_between_processes_is_reported(bench: Bench) -> None:
    run(bench, "u")
    bench.now += 40
    bench.guard.tick()
    bench.boot()
    bench.accept()
    bench.wait(1)
    assert bench.states_of("u")[-1] is S.WORKER_FAILED
    assert bench.reports()[-1].reason == LEASE_OVER


def test_attempt_lost_from_the_journal_keeps_its_old_deadline(bench: Bench) -> None:
    run(bench, "u", stop_grace_seconds=0.0)  # it lives on until the cell is registered
    deadline = bench.guard.read().attempts["u"].deadline
    (bench.folder / "journal").write_bytes(b"")
    bench.is_engine_away = True
    bench.boot()
    bench.accept()
    run(bench, "v")
    attempts = bench.guard.read().attempts
    assert attempts["u"].deadline == deadline
    assert attempts["v"].deadline == bench.now + 30
    for _ in range(6):
        bench.wait(5)
        bench.sync(0)
    assert list(bench.guard.read().attempts) == ["v"]
    assert bench.engine.lives["u"].ends_at <= deadline
    assert bench.engine.running(bench.now) == 1


def test_machine_reboot_expires_the_leases_on_the_watchlist(bench: Bench) -> None:
    run(bench, "u")
    bench.guard = LocalGuardLink(
        bench.engine,
        wall=lambda: bench.now,
        boot=lambda: bench.now,
        boot_id="another",
        watchlist=bench.guard.read(),
    )
    bench.boot()
    assert not bench.engine.running(bench.now)


def test_draw_anew_answer_does_not_renew_the_lease(bench: Bench) -> None:
    run(bench, "u")
    bench.wait(5)
    deadline = bench.guard.read().attempts["u"].deadline
    bench.sync(0, draw_anew=True)
    assert bench.cell.lease.expires_at == deadline


def test_stop_order_takes_precedence_over_lease_expiry_in_the_report(bench: Bench) -> None:
    run(bench, "u", "deaf", "sleep", "1000")
    bench.cell._take_stop(StopAttempt("u", "cancelled", 1000.0), bench.moment)
    bench.wait(30)
    assert bench.states_of("u")[-1] is S.KILLED


def test_cell_without_a_guard_refuses_exclusive_orders(bench: Bench) -> None:
    bench.guard = None  # type: ignore[assignment]
    bench.boot()
    bench.accept()
    run(bench, "u")
    assert bench.reports()[-1].never_created
    assert bench.engine.starts["u"] == 0


def test_deadline_that_could_not_be_written_is_written_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the guard would end the attempt, though the lease was renewed."""

    def fail(watchlist: Watchlist) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    run(bench, "u")
    before = bench.guard.read().attempts["u"].deadline
    bench.wait(5)
    with monkeypatch.context() as full:
        full.setattr(bench.guard, "write", fail)
        bench.sync(0)
        assert bench.guard.read().attempts["u"].deadline == before
    bench.round()
    assert bench.guard.read().attempts["u"].deadline == bench.cell.lease.expires_at > before
