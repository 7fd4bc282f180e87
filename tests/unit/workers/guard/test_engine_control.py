"""The guard's signals reach the container's own process, and no other that has its number."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.attempt.runtime import ContainerStatus, ContainerView
from workers.guard.decisions import ContainerFacts
from workers.guard.engine_control import INSPECTION_SECONDS, ContainerEngineControl

UID = "11111111-1111-4111-8111-111111111111"
SOON = 10.0


class Reach:
    """An engine that shows a container of which the main process has some number."""

    def __init__(self, view: ContainerView) -> None:
        self.shown = view
        self.views = 0
        self.signals: list[str] = []

    def view(self, uid: str) -> ContainerView | None:
        self.views += 1
        return self.shown

    def signal(self, uid: str, name: str) -> bool:
        self.signals.append(name)
        return True

    def remove(self, uid: str) -> None:
        raise AssertionError("it runs")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def group_of(process: "subprocess.Popen[bytes]") -> str:
    """Text that stands in the process's cgroup file, as a container's id does."""
    return Path(f"/proc/{process.pid}/cgroup").read_text(encoding="ascii").splitlines()[0]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def control_of(reach: Reach) -> ContainerEngineControl:
    """Return an engine control that has inspected the container."""
    control = ContainerEngineControl(reach)
    control.inspect(UID, now=INSPECTION_SECONDS)
    until(lambda: control.known(UID) is ContainerFacts.THERE)
    return control


def test_process_of_another_cgroup_is_not_signalled(process: "subprocess.Popen[bytes]") -> None:
    """The container's process has ended, and another process has its number."""
    reach = Reach(ContainerView(ContainerStatus.RUNNING, "f" * 64, pid=process.pid))
    control = control_of(reach)
    control.stop(UID, "TERM")
    control.kill(UID)
    until(lambda: sorted(reach.signals) == ["KILL", "TERM"])  # by the engine, which knows better
    until(lambda: reach.views >= 3)
    control.kill(UID)
    assert process.poll() is None


def test_process_of_the_container_cgroup_is_signalled_without_the_engine(
    process: "subprocess.Popen[bytes]",
) -> None:
    reach = Reach(ContainerView(ContainerStatus.RUNNING, group_of(process), pid=process.pid))
    control = control_of(reach)
    control.stop(UID, "TERM")
    assert process.wait(SOON) == -15
    assert reach.signals == []
    until(lambda: control.known(UID) is ContainerFacts.OVER)
    control.forget(UID)


def test_a_container_that_does_not_run_has_no_process_to_signal(
    process: "subprocess.Popen[bytes]",
) -> None:
    reach = Reach(ContainerView(ContainerStatus.ENDED, group_of(process), pid=process.pid))
    control = ContainerEngineControl(reach)
    control.inspect(UID, now=INSPECTION_SECONDS)
    until(lambda: control.known(UID) is ContainerFacts.OVER)
    control.kill(UID)
    until(lambda: reach.views >= 2)
    assert (process.poll(), reach.signals) == (None, [])
