"""People with a shell on the machine: they stop, kill, pause and remove what is ours."""

from collections.abc import Callable

import pytest

from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit, until
from workers.attempt.events import BuildingEvent, EndedEvent, Launch, StartedEvent
from workers.attempt.outcome import EXIT, KILLED_OUTSIDE, STOPPED, VANISHED

pytestmark = pytest.mark.engine

AT_ONCE = 20
PAUSED = "echo ready; i=0; while [ $i -lt 8 ]; do i=$((i+1)); sleep 0.1; done; exit 4"


def begun(kit: DockerKit, *command: str) -> Launch:
    """A launch that runs."""
    launch = kit.launch(*command)
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    return launch


def name_of(launch: Launch) -> str:
    """What people call its container."""
    return f"cellrun-{launch.uid}"


def kinds(kit: DockerKit, launch: Launch) -> list[type]:
    """Return the types of its events, without those of building."""
    return [
        type(event) for event in kit.events.of(launch.uid) if not isinstance(event, BuildingEvent)
    ]


def test_container_stopped_from_outside_is_reported_as_killed_outside(
    docker_kit: DockerKit,
) -> None:
    launch = begun(docker_kit, "sleep", "300")
    docker_kit.outside.stop(name_of(launch), timeout=1)
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind) == (137, FailureKind.OUTSIDE)
    assert ended.reason == KILLED_OUTSIDE
    assert kinds(docker_kit, launch) == [StartedEvent, EndedEvent]


def test_renamed_container_still_belongs_to_its_attempt(docker_kit: DockerKit) -> None:
    launch = begun(docker_kit, "sh", "-c", "sleep 1; exit 5")
    docker_kit.outside.rename(name_of(launch), f"other-{launch.uid}")
    assert docker_kit.events.ended(launch.uid).exit_code == 5
    docker_kit.driver.remove(launch.uid)
    until(lambda: not list(docker_kit.driver.find()))


def test_renamed_container_is_found_by_the_next_process_of_the_cell(docker_kit: DockerKit) -> None:
    launch = begun(docker_kit, "sleep", "300")
    docker_kit.outside.rename(name_of(launch), f"other-{launch.uid}")
    docker_kit.begin_again()
    docker_kit.driver.adopt(launch)
    docker_kit.events.started(launch.uid)
    docker_kit.driver.stop(launch.uid, grace_seconds=0.1, force=True)
    assert docker_kit.events.ended(launch.uid).reason == STOPPED
    docker_kit.driver.remove(launch.uid)
    until(lambda: not list(docker_kit.driver.find()))


@pytest.mark.parametrize("signal_name", ["TERM", "USR1"])
def test_program_obeying_an_outside_stop_signal_is_reported_killed_outside(
    docker_kit: DockerKit, signal_name: str
) -> None:
    script = f"trap 'exit 9' {signal_name}; echo ready; sleep 300 & wait"
    launch = docker_kit.launch("sh", "-c", script, stop_signal=signal_name)
    docker_kit.driver.start(launch)
    docker_kit.wait_until_ready(launch.uid)
    docker_kit.outside.kill(name_of(launch), f"SIG{signal_name}")
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind) == (9, FailureKind.OUTSIDE)
    assert ended.reason == KILLED_OUTSIDE
    assert "stopped from outside" in str(ended.message)


def test_other_signal_from_outside_does_not_excuse_the_exit_code(
    docker_kit: DockerKit,
) -> None:
    launch = begun(docker_kit, *docker_kit.obedient("USR1"))
    docker_kit.wait_until_ready(launch.uid)
    docker_kit.outside.kill(name_of(launch), "SIGUSR1")
    ended = docker_kit.events.ended(launch.uid)
    assert (ended.exit_code, ended.failure_kind, ended.reason) == (143, None, EXIT)


def test_paused_container_is_adopted_and_continues_once_unpaused(docker_kit: DockerKit) -> None:
    launch = begun(docker_kit, "sh", "-c", PAUSED)
    docker_kit.wait_until_ready(launch.uid)
    docker_kit.outside.pause(name_of(launch))
    docker_kit.begin_again()
    docker_kit.driver.adopt(launch)
    assert [found.running for found in docker_kit.driver.find()] == [True]
    docker_kit.events.started(launch.uid)
    assert not any(isinstance(event, EndedEvent) for event in docker_kit.events.of(launch.uid))
    docker_kit.outside.unpause(name_of(launch))
    assert docker_kit.events.ended(launch.uid).exit_code == 4
    assert docker_kit.starts(launch.uid) == 1


def test_paused_container_can_be_stopped(docker_kit: DockerKit) -> None:
    launches = [begun(docker_kit, *docker_kit.deaf(300)) for _ in range(2)]
    for launch, force in zip(launches, (True, False), strict=True):
        docker_kit.wait_until_ready(launch.uid)
        docker_kit.outside.pause(name_of(launch))
        docker_kit.driver.stop(launch.uid, grace_seconds=0.2, force=force)
    for launch in launches:
        ended = docker_kit.events.ended(launch.uid)
        assert (ended.exit_code, ended.reason) == (137, STOPPED)


def test_container_restarted_from_outside_is_reported_once(docker_kit: DockerKit) -> None:
    launch = docker_kit.launch(*docker_kit.exits(3))
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    docker_kit.outside.start(name_of(launch))
    docker_kit.driver.remove(launch.uid)
    until(lambda: not list(docker_kit.driver.find()))
    assert (ended.exit_code, ended.reason) == (3, EXIT)
    assert kinds(docker_kit, launch) == [StartedEvent, EndedEvent]


@pytest.mark.parametrize("what", ["kill", "remove"])
def test_containers_ended_from_outside_together_are_each_reported(
    docker_kit: DockerKit, what: str
) -> None:
    launches = [docker_kit.launch("sleep", "300") for _ in range(AT_ONCE)]
    for launch in launches:
        docker_kit.driver.start(launch)
    for launch in launches:
        docker_kit.events.started(launch.uid)
    action: Callable[[str], None] = getattr(docker_kit, f"{what}_outside")
    for launch in launches:
        action(launch.uid)
    for launch in launches:
        ended = docker_kit.events.ended(launch.uid)
        assert ended.failure_kind is FailureKind.OUTSIDE
        assert ended.reason in (VANISHED, KILLED_OUTSIDE)
        assert kinds(docker_kit, launch) == [StartedEvent, EndedEvent]
