"""GPUs of plain processes: variables show a task only the GPUs that no other attempt holds."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import ProcessKit, until
from tests.conformance.test_death import cell_of
from workers.attempt.events import Launch
from workers.attempt.outcome import ENGINE
from workers.drivers.process.engine import ProcessEngine

GPUS = 4
SHOW = "env; echo ready; exec sleep 300"


@pytest.fixture
def gpu_kit(process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch) -> ProcessKit:
    """A cell with four GPUs."""
    config = process_kit.config
    monkeypatch.setattr(
        process_kit, "config", lambda **changes: config(capacity={"gpu": GPUS}, **changes)
    )
    process_kit.begin_again()
    return process_kit


def started(kit: ProcessKit, count: int, **spec: object) -> Launch:
    """An attempt with so many GPUs, which prints its variables and sleeps."""
    launch = kit.launch("sh", "-c", SHOW, resources={"gpu": count} if count else {}, **spec)
    kit.driver.start(launch)
    return launch


def variables(kit: ProcessKit, uid: str) -> Mapping[str, str]:
    """What the running program of the attempt sees."""
    until(lambda: "ready\n" in kit.log(uid))
    lines = [line.partition("=") for line in kit.log(uid).splitlines()]
    return {name: value for name, _, value in lines}


def gpus(kit: ProcessKit, launch: Launch) -> set[str]:
    """The numbers of its GPUs."""
    seen = variables(kit, launch.uid)
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["ROCR_VISIBLE_DEVICES"] == seen["ZE_AFFINITY_MASK"]
    return set(seen["CUDA_VISIBLE_DEVICES"].split(","))


def stop(kit: ProcessKit, launch: Launch) -> None:
    kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    kit.events.ended(launch.uid)


def test_processes_at_once_get_disjoint_gpus(gpu_kit: ProcessKit) -> None:
    pair, *singles = [started(gpu_kit, count) for count in (2, 1, 1)]
    seen = [gpus(gpu_kit, launch) for launch in (pair, *singles)]
    assert [len(numbers) for numbers in seen] == [2, 1, 1]
    assert set().union(*seen) == {"0", "1", "2", "3"}


def test_process_gets_the_gpus_of_an_ended_one(gpu_kit: ProcessKit) -> None:
    first, second = started(gpu_kit, 3), started(gpu_kit, 1)
    held = gpus(gpu_kit, first)
    gpus(gpu_kit, second)
    stop(gpu_kit, first)  # and is not removed
    assert gpus(gpu_kit, started(gpu_kit, 3)) == held


def test_process_without_free_gpus_fails_by_the_system(gpu_kit: ProcessKit) -> None:
    gpus(gpu_kit, started(gpu_kit, GPUS))
    ended = gpu_kit.events.ended(started(gpu_kit, 1).uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, ENGINE)
    assert ended.message is not None
    assert "1 GPUs are requested, and 0 of 4 are free" in ended.message


@pytest.mark.parametrize("workdir", [None, "/below"], ids=["short path", "pipeline"])
def test_process_that_requests_no_gpu_sees_none(gpu_kit: ProcessKit, workdir: str | None) -> None:
    request = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "0,1,2,3")
    seen = variables(gpu_kit, started(gpu_kit, 0, workdir=workdir, env=request).uid)
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert [seen[name] for name in names] == ["", "", ""]
    assert int(seen["ZE_AFFINITY_MASK"]) >= GPUS


def test_health_check_sees_the_gpus_of_its_task(gpu_kit: ProcessKit) -> None:
    launch = started(gpu_kit, 2)
    gpus(gpu_kit, launch)
    check = ("sh", "-c", 'test "$CUDA_VISIBLE_DEVICES" = 0,1')
    with contextlib.closing(ProcessEngine(home=gpu_kit.home, max_log_bytes=0)) as engine:
        assert engine.check(launch, check, 60) == ""


def test_gpus_stay_held_after_a_restart_of_the_cell(gpu_kit: ProcessKit) -> None:
    first, second = started(gpu_kit, 2), started(gpu_kit, 1)
    held = gpus(gpu_kit, first) | gpus(gpu_kit, second)
    gpu_kit.begin_again()
    # The new process need not have adopted the running attempts.
    third = started(gpu_kit, 1)
    assert gpus(gpu_kit, third) == {"0", "1", "2", "3"} - held
    for launch in (first, second):
        gpu_kit.driver.adopt(launch)
        gpu_kit.events.started(launch.uid)
    stop(gpu_kit, first)
    assert gpus(gpu_kit, started(gpu_kit, 2)) == gpus(gpu_kit, first)


def test_gpus_of_a_killed_cell_stay_held(gpu_kit: ProcessKit) -> None:
    with cell_of(gpu_kit, SHOW, SHOW, resources={"gpu": 1}):
        uids = [f"{gpu_kit.config().installation}-{number}" for number in range(2)]
        held = {variables(gpu_kit, uid)["CUDA_VISIBLE_DEVICES"] for uid in uids}
    assert len(held) == 2
    gpu_kit.begin_again()
    assert gpus(gpu_kit, started(gpu_kit, 2)) == {"0", "1", "2", "3"} - held


def test_gpus_of_a_process_that_is_being_removed_stay_held(gpu_kit: ProcessKit) -> None:
    first = started(gpu_kit, 2)
    held = gpus(gpu_kit, first)
    # A cell killed in the middle of a removal leaves no order, but a process.
    (gpu_kit.home / "work" / first.uid / "order.json").unlink()
    gpu_kit.begin_again()
    assert gpus(gpu_kit, started(gpu_kit, 2)) == {"0", "1", "2", "3"} - held


def test_created_process_keeps_its_gpus_until_it_starts(gpu_kit: ProcessKit) -> None:
    launch = gpu_kit.launch("sh", "-c", SHOW, resources={"gpu": 2})
    engine = ProcessEngine(home=gpu_kit.home, max_log_bytes=2**20, gpus=GPUS)
    engine.create(launch, ())
    first = gpus(gpu_kit, started(gpu_kit, 2))
    engine.start(launch.uid)
    engine.close()
    assert gpus(gpu_kit, launch) == {"0", "1", "2", "3"} - first


def test_gpus_of_a_killed_spawner_are_free(gpu_kit: ProcessKit) -> None:
    first = started(gpu_kit, GPUS)
    gpus(gpu_kit, first)
    gpu_kit.remove_outside(first.uid)
    gpu_kit.events.ended(first.uid)
    assert len(gpus(gpu_kit, started(gpu_kit, GPUS))) == GPUS


def test_removed_attempts_leave_no_record(gpu_kit: ProcessKit) -> None:
    launch = started(gpu_kit, 1)
    gpus(gpu_kit, launch)
    records: Path = gpu_kit.home / "gpus"
    assert os.listdir(records) == [launch.uid]
    gpu_kit.driver.remove(launch.uid)
    until(lambda: not os.listdir(records))


def test_interrupted_creation_gets_other_gpus_than_running_attempts(gpu_kit: ProcessKit) -> None:
    launch = gpu_kit.launch("sh", "-c", SHOW, resources={"gpu": 2})
    engine = ProcessEngine(home=gpu_kit.home, max_log_bytes=2**20, gpus=GPUS)
    engine.create(launch, ())
    order = gpu_kit.home / "work" / launch.uid / "order.json"
    order.write_text(order.read_text()[:40])  # the cell was killed while it wrote
    first = gpus(gpu_kit, started(gpu_kit, 2))
    engine.create(launch, ())
    engine.close()
    again = json.loads(order.read_text())["env"]["CUDA_VISIBLE_DEVICES"]
    assert not set(again.split(",")) & first
