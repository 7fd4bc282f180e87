"""The process of a cell begins: what it finds left over, and what it blames for its deaths."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.contract.messages.reports import Goodbye, Heartbeat, Register
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from tests.harness.cell_bench import Bench, Driver
from workers.agent.cell import MAX_SWEPT, UNSEEN_SECONDS
from workers.agent.inputs import ScanResult
from workers.attempt.events import BuildingEvent, EndedEvent
from workers.attempt.outcome import STOPPED
from workers.service.host import CellHost


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.accept()
    yield bench
    bench.close()


def test_sequence_numbers_grow_across_unanswered_processes(ready: Bench) -> None:
    """Otherwise a successor with lower numbers looks like a journal that was rolled back."""
    last = 0
    for _ in range(3):
        ready.boot()
        ready.round()
        assert isinstance(ready.sent[-1], Register)
        assert ready.last_seq > last
        ready.cell.leave(ready.moment, expected_seconds=120)
        ready.round()
        assert isinstance(ready.sent[-1], Goodbye)
        last = ready.last_seq
    ready.boot()
    ready.accept()
    ready.wait(6)
    assert isinstance(ready.sent[-1], Heartbeat)
    assert ready.last_seq > last


# ------------------------------------------------------------------ what it finds


def test_cell_loop_never_lists_containers_itself(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(Bench, "scan", lambda bench: None)
    monkeypatch.setattr(Driver, "find", calls.append)
    ready.boot()
    ready.accept()
    ready.wait(20)
    assert isinstance(ready.sent[-1], Heartbeat)
    assert calls == []
    ready.stop("u")
    assert not ready.reports()[-1].never_created
    ready.cell.note(ScanResult((), ()), ready.moment)
    ready.stop("v")
    assert ready.reports()[-1].never_created


def test_first_scan_removes_leftover_ended_containers(ready: Bench) -> None:
    ready.run("u", "sleep", "60")
    left = ready.engine.lives["u"]
    ready.wait(60)
    assert ready.states_of("u")[-1] is S.SUCCEEDED
    ready.engine.lives["u"] = left
    ready.boot()
    assert "u" not in ready.engine.lives


def test_first_scan_over_the_sweep_limit_does_not_imply_never_created(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "scan", lambda bench: None)
    ready.boot()
    ready.accept()
    many = tuple(f"stranger-{number}" for number in range(MAX_SWEPT + 1))
    ready.cell.note(ScanResult(many, ()), ready.moment)
    ready.stop(many[-1])
    assert not ready.reports()[-1].never_created


def lose_journal(bench: Bench) -> None:
    """All processes end, and the next finds nothing written."""
    (bench.folder / "journal").write_bytes(b"")
    bench.sent.clear()


def test_cell_with_a_lost_journal_registers_after_leftovers_are_removed(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.run("stranger", "sleep", "60")
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "scan", lambda bench: None)
        lose_journal(ready)
        for _ in range(2):  # nor does one that takes over before the first scan
            ready.boot()
            ready.wait(UNSEEN_SECONDS / 2)
        assert ready.sent == []
    assert ready.engine.running(ready.now) == 1
    ready.scan()
    assert ready.engine.running(ready.now) == 0
    assert [type(message) for message in ready.sent] == [Register]


def test_new_cell_without_an_engine_registers_after_a_timeout(ready: Bench) -> None:
    ready.is_engine_away = True
    lose_journal(ready)
    ready.boot()
    ready.wait(UNSEEN_SECONDS / 2)
    assert ready.sent == []
    ready.wait(UNSEEN_SECONDS)
    assert Register in [type(message) for message in ready.sent]


@pytest.mark.parametrize("has_attempts", [True, False])
def test_known_cell_registers_again_without_waiting_for_the_engine(
    ready: Bench, has_attempts: bool
) -> None:
    if has_attempts:
        ready.run("u", "sleep", "60")
    ready.is_engine_away = True
    ready.sent.clear()
    ready.boot()
    assert [type(message) for message in ready.sent] == [Register]


def test_leftovers_over_the_sweep_limit_delay_registration_by_a_timeout(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "scan", lambda bench: None)
    lose_journal(ready)
    ready.boot()
    many = tuple(f"stranger-{number}" for number in range(MAX_SWEPT + 1))
    ready.cell.note(ScanResult(many, ()), ready.moment)
    ready.round()
    assert ready.sent == []
    ready.wait(UNSEEN_SECONDS + 5)
    assert Register in [type(message) for message in ready.sent]


# ----------------------------------------------------------- which attempt it blames


def test_clean_restarts_are_not_blamed_on_an_attempt(ready: Bench) -> None:
    ready.run("u", "build", "99")
    for _ in range(4):
        ready.cell.leave(ready.moment, expected_seconds=120)
        ready.round()
        ready.boot()
    ready.accept()
    ready.wait(1)
    assert ready.states_of("u")[-1] is S.BUILDING


def test_process_reexecution_is_not_blamed_on_an_attempt(ready: Bench) -> None:
    for _ in range(4):
        ready.run("u", "build", "99")
        is_anew, bus = threading.Event(), SimpleNamespace(push=lambda messages: None)
        host = CellHost(ready.journals, bus)
        host.add(ready.cell)
        host._incarnations[ready.cell.name] = ready.cell.incarnation
        host._on_new_incarnation = is_anew.set
        host.start()
        host.restart()
        assert is_anew.is_set()
        ready.boot()
    ready.accept()
    ready.wait(1)
    assert ready.states_of("u")[-1] is S.BUILDING


def test_attempt_that_makes_progress_is_not_blamed_for_kills(ready: Bench) -> None:
    ready.run("u", "build", "99")
    for phase in (None, Phase.PULLING, Phase.CREATING, Phase.CHECKING, None, None, None, None):
        ready.boot()
        if phase is not None:
            ready.cell.note(BuildingEvent("u", phase), ready.moment)
            ready.round()
    ready.accept()
    ready.wait(1)
    assert ready.states_of("u")[-1] is S.BUILDING


def test_blamed_attempt_is_stopped_before_its_refusal_is_reported(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, bool]] = []

    def stop(driver: Driver, uid: str, *, grace_seconds: float, force: bool) -> None:
        calls.append((uid, force))

    monkeypatch.setattr(Driver, "stop", stop)
    ready.run("u", "build", "99")
    for _ in range(3):
        ready.boot()
    ready.accept()
    ready.wait(1)
    assert calls == [("u", True)]
    assert ready.states_of("u")[-1] is S.BUILDING
    ready.events.append(EndedEvent("u", ready.now, reason=STOPPED))
    ready.wait(1)
    assert (ready.reports()[-1].state, ready.reports()[-1].reason) == (S.WORKER_FAILED, "refused")


def test_attempt_that_crashes_the_cell_while_stopping_is_reported_failed(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "stop", lambda *of, **more: None)
    ready.run("u", "build", "99")
    for _ in range(5):
        ready.boot()
    ready.accept()
    assert ready.states_of("u")[-1] is S.WORKER_FAILED


def test_abandoned_attempt_keeps_its_unacknowledged_phases(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "stop", lambda *of, **more: None)
    ready.run("u", "build", "99")
    ready.wait(1)
    assert [change.text for change in ready.reports()[-1].phases] == ["preparing"]
    for _ in range(5):
        ready.boot()
    ready.accept()
    assert ready.states_of("u")[-1] is S.WORKER_FAILED
    assert [change.text for change in ready.reports()[-1].phases] == ["preparing"]
