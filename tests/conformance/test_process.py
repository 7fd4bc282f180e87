"""What is particular to plain processes."""

import pytest

from tests.conformance.kit import ProcessKit, until
from workers.drivers.process import start_mark


def test_nothing_of_the_cell_s_environment_reaches_a_task(
    process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_CELL_KEY_FILE", "hush")
    launch = process_kit.launch("env")
    process_kit.driver.start(launch)
    process_kit.told.ended(launch.uid)
    assert "hush" not in process_kit.log(launch.uid)
    assert "PATH=" in process_kit.log(launch.uid)


def test_task_dies_with_its_supervisor(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sh", "-c", "trap '' TERM; sleep 300")
    process_kit.driver.start(launch)
    process_kit.told.started(launch.uid)
    task = process_kit.begin(launch.uid)["task"]["pid"]
    process_kit.remove_outside(launch.uid)
    until(lambda: start_mark(task) is None)


def test_no_process_is_left_after_a_stop(process_kit: ProcessKit) -> None:
    script = "echo $$; setsid sleep 300 & echo $!; sleep 300 & echo $!; wait"
    launch = process_kit.launch("sh", "-c", script)
    process_kit.driver.start(launch)
    until(lambda: process_kit.log(launch.uid).count("\n") == 3)
    process_kit.driver.stop(launch.uid, grace_seconds=10, force=False)
    process_kit.told.ended(launch.uid)
    for pid in process_kit.log(launch.uid).split():
        assert start_mark(int(pid)) is None


def test_memory_is_limited_by_address_space(process_kit: ProcessKit) -> None:
    launch = process_kit.launch("sh", "-c", "ulimit -v", resources={"memory_mib": 512})
    process_kit.driver.start(launch)
    process_kit.told.ended(launch.uid)
    assert process_kit.log(launch.uid) == f"{512 * 1024}\n"
