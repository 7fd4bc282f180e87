"""A task that uses more disk than it requested is stopped, with the amount in its message."""

from typing import Any

import pytest

import workers.attempt.disk
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit, Kit
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import DISK_LIMIT

WRITE = 'head -c {} /dev/zero > "${{CELLRUN_ROOT:-}}/{}"; sleep {}'


def ran(kit: Kit, script: str, **spec: Any) -> EndedEvent:
    """Return the end of a shell script that requested 10 MiB of disk."""
    resources = {"disk_mib": 10}
    launch = kit.launch("sh", "-c", script, resources=resources, result_file="/out/result", **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def assert_stopped(ended: EndedEvent) -> None:
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, DISK_LIMIT)
    assert ended.message == "used 12.0 MiB of disk, but requested 10 MiB"
    assert ended.usage is not None
    assert ended.usage["disk_peak_mib"] == 12.0


def test_disk_limit_stops_the_attempt(real_kit: Kit) -> None:
    assert_stopped(ran(real_kit, WRITE.format(12 << 20, "out/many", 300)))


def test_disk_use_below_the_limit_does_not_stop_the_attempt(real_kit: Kit) -> None:
    ended = ran(real_kit, WRITE.format(9 << 20, "out/some", 1.5))
    assert (ended.exit_code, ended.failure_kind) == (0, None)
    assert ended.usage is not None
    assert ended.usage["disk_peak_mib"] == 9.0


@pytest.fixture
def checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check default limits as soon as requested ones: the test need not wait 15 seconds."""
    monkeypatch.setattr(
        workers.attempt.disk, "DEFAULT_POLL_SECONDS", workers.attempt.disk.FIRST_SECONDS
    )


@pytest.mark.usefixtures("checked_at_once")
def test_task_without_a_request_has_the_default_limit_of_its_pool(real_kit: Kit) -> None:
    script = WRITE.format(12 << 20, "out/many", 300)
    launch = real_kit.launch("sh", "-c", script, disk_limit_mib=10, result_file="/out/result")
    real_kit.driver.start(launch)
    ended = real_kit.events.ended(launch.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.USER, DISK_LIMIT)
    assert ended.message == (
        "used 12.0 MiB of disk, but the default limit of its pool is 10 MiB:"
        " request it (resources.disk)"
    )


@pytest.mark.usefixtures("checked_at_once")
def test_request_replaces_the_default_limit(real_kit: Kit) -> None:
    ended = ran(real_kit, WRITE.format(9 << 20, "out/some", 1.5), disk_limit_mib=1)
    assert (ended.exit_code, ended.failure_kind) == (0, None)


@pytest.mark.engine
def test_writable_folders_of_a_read_only_container_count_as_disk_use(docker_kit: DockerKit) -> None:
    script = WRITE.format(12 << 20, "out/many", 300)
    assert_stopped(ran(docker_kit, script, read_only=True))


def test_disk_limit_exceeded_while_the_cell_was_down_stops_the_attempt(
    real_kit: Kit,
) -> None:
    script = WRITE.format(12 << 20, "out/many", 300)
    launch = real_kit.launch(
        "sh", "-c", script, resources={"disk_mib": 10}, result_file="/out/result"
    )
    real_kit.driver.start(launch)
    real_kit.events.started(launch.uid)
    real_kit.begin_again()
    real_kit.driver.adopt(launch)
    assert_stopped(real_kit.events.ended(launch.uid))
