"""What is particular to plain processes."""

import contextlib
import os
import signal

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import ProcessKit, until
from workers.attempt.outcome import STOPPED
from workers.drivers.process.engine import ProcessEngine
from workers.spawner.scanning import inspect_process


def test_task_does_not_inherit_the_environment_of_the_cell(
    process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_CELL_KEY_FILE", "hush")
    launch = process_kit.launch("env")
    process_kit.driver.start(launch)
    process_kit.events.ended(launch.uid)
    assert "hush" not in process_kit.log(launch.uid)
    assert "PATH=" in process_kit.log(launch.uid)


def test_task_of_a_killed_spawner_ends_from_outside_with_its_children(
    process_kit: ProcessKit,
) -> None:
    script = "trap '' TERM; echo $$; setsid sleep 300 & echo $!; sleep 300 & echo $!; wait"
    launch = process_kit.launch("sh", "-c", script)
    process_kit.driver.start(launch)
    until(lambda: process_kit.log(launch.uid).count("\n") == 3)
    os.kill(process_kit.spawner(), signal.SIGKILL)
    ended = process_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind) == (None, FailureKind.OUTSIDE)
    for pid in process_kit.log(launch.uid).split():
        assert inspect_process(int(pid)) is None


def test_tasks_start_with_a_new_spawner_after_a_kill(process_kit: ProcessKit) -> None:
    first, second = process_kit.launch("sleep", "300"), process_kit.launch("true")
    process_kit.driver.start(first)
    process_kit.events.started(first.uid)
    os.kill(process_kit.spawner(), signal.SIGKILL)
    process_kit.events.ended(first.uid)
    process_kit.driver.start(second)
    assert process_kit.events.ended(second.uid).exit_code == 0


def test_successor_ends_tasks_left_by_a_killed_cell_and_spawner(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sh", "-c", f"{process_kit.count} exec sleep 300")
    process_kit.driver.start(launch)
    process_kit.events.started(launch.uid)
    task, spawner = process_kit.pid(launch.uid), process_kit.spawner()
    process_kit.driver.close()
    os.kill(spawner, signal.SIGKILL)
    process_kit.begin_again()
    process_kit.driver.adopt(launch)
    assert process_kit.events.ended(launch.uid).failure_kind is FailureKind.OUTSIDE
    assert inspect_process(task) is None
    assert process_kit.starts(launch.uid) == 1


def test_one_spawner_serves_successive_cell_processes(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sleep", "300")
    process_kit.driver.start(launch)
    process_kit.events.started(launch.uid)
    spawner = process_kit.spawner()
    process_kit.begin_again()
    process_kit.driver.adopt(launch)
    process_kit.events.started(launch.uid)
    assert process_kit.spawner() == spawner
    assert process_kit.pid(launch.uid)


def test_spawner_ends_when_it_has_no_tasks_and_no_cell(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("true")
    process_kit.driver.start(launch)
    process_kit.events.ended(launch.uid)
    spawner = process_kit.spawner()
    process_kit.driver.close()
    until(lambda: inspect_process(spawner) is None)
    process_kit.begin_again()
    process_kit.driver.adopt(launch)
    assert process_kit.events.ended(launch.uid).exit_code == 0


def test_detached_child_with_cleared_environment_ends_with_the_task(
    process_kit: ProcessKit,
) -> None:
    fled = "env -i setsid sh -c 'echo $$; : > fled; exec sleep 300'"
    launch = process_kit.launch("sh", "-c", f"{fled} & until [ -e fled ]; do :; done")
    process_kit.driver.start(launch)
    process_kit.events.ended(launch.uid)
    assert inspect_process(int(process_kit.log(launch.uid))) is None


def test_memory_limit_too_small_for_the_spawner_is_accepted(
    process_kit: ProcessKit,
) -> None:
    launch = process_kit.launch("true", resources={"memory_mib": 8})
    process_kit.driver.start(launch)
    assert process_kit.events.ended(launch.uid).exit_code == 0


def test_broken_pipe_ends_a_task_as_it_does_in_a_shell(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sh", "-c", "(yes; echo $? >&2) | head -1")
    process_kit.driver.start(launch)
    process_kit.events.ended(launch.uid)
    assert process_kit.log(launch.uid, "stderr") == "141\n"


def test_no_process_is_left_after_a_stop(process_kit: ProcessKit) -> None:
    script = "echo $$; setsid sleep 300 & echo $!; sleep 300 & echo $!; wait"
    launch = process_kit.launch("sh", "-c", script)
    process_kit.driver.start(launch)
    until(lambda: process_kit.log(launch.uid).count("\n") == 3)
    process_kit.driver.stop(launch.uid, grace_seconds=10, force=False)
    process_kit.events.ended(launch.uid)
    for pid in process_kit.log(launch.uid).split():
        assert inspect_process(int(pid)) is None


def test_memory_is_limited_by_address_space(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sh", "-c", "ulimit -v", resources={"memory_mib": 512})
    process_kit.driver.start(launch)
    process_kit.events.ended(launch.uid)
    assert process_kit.log(launch.uid) == f"{512 * 1024}\n"


def test_forced_stop_kills_the_task_of_a_suspended_spawner(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sleep", "300")
    process_kit.driver.start(launch)
    process_kit.events.started(launch.uid)
    task, spawner = process_kit.pid(launch.uid), process_kit.spawner()
    os.kill(spawner, signal.SIGSTOP)
    try:
        process_kit.driver.stop(launch.uid, grace_seconds=0, force=True)
        until(lambda: inspect_process(task) is None)
    finally:
        os.kill(spawner, signal.SIGCONT)
    assert process_kit.events.ended(launch.uid).reason == STOPPED


def test_cpu_time_and_memory_of_all_processes_are_reported(process_kit: ProcessKit) -> None:
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    launch = process_kit.launch("sh", "-c", f"({busy}); {busy}")
    process_kit.driver.start(launch)
    usage = process_kit.events.ended(launch.uid).usage
    assert usage is not None
    assert usage["cpu_seconds"] > 0.01
    assert usage["memory_peak_mib"] > 0


def test_process_with_the_pid_of_an_ended_task_gets_no_signal(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sleep", "300")
    process_kit.driver.start(launch)
    process_kit.events.started(launch.uid)
    with contextlib.closing(ProcessEngine(home=process_kit.home, max_log_bytes=0)) as engine:
        engine.view(launch.uid)  # connects
        task = engine.link.find(launch.uid)
        assert task is not None
        task.mark -= 1  # the task began earlier than the process that has its pid
        assert not engine.signal(launch.uid, "KILL")
    seen = inspect_process(task.pid)
    assert seen is not None
    assert seen[1] == task.mark + 1
