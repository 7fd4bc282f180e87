"""Every real driver reports the phases that an attempt enters, each when it enters it.

Sources: Iris: "ASSIGNED -> worker starts task -> BUILDING -> build completes -> RUNNING";
Backend.AI: PREPARING, PULLING and CREATING are stages of a session with time limits of their own.
"""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import HealthCheck, Input
from controlplane.contract.states import FailureKind
from tests.conformance.cable import Cable
from tests.conformance.distribution import Distribution, serving
from tests.conformance.kit import DockerKit, Kit, ProcessKit, until
from tests.conformance.outside import Outside
from tests.conformance.runners import Scripted, runner_kit
from tests.harness.web import Web
from workers.attempt.events import BuildingEvent, EndedEvent, StageFailedEvent, StartedEvent
from workers.attempt.outcome import STOPPED
from workers.drivers.docker.connection import find_socket
from workers.runners.interface import RunnerObservation, RunnerPhase

READY = HealthCheck(command=("true",), interval_seconds=0.1, start_period_seconds=30.0)
CREATE = b"/containers/create"


def phases(kit: Kit, uid: str) -> list[str]:
    """The phases that were reported, each once per entering."""
    entered = [event.phase for event in kit.events.of(uid) if isinstance(event, BuildingEvent)]
    return [phase for at, phase in enumerate(entered) if at == 0 or entered[at - 1] is not phase]


def lived(kit: Kit, *command: str, **spec: object) -> str:
    """The uid of an attempt that ran to its end."""
    launch = kit.launch(*(command or ("true",)), **spec)
    kit.driver.start(launch)
    assert kit.events.ended(launch.uid).exit_code == 0
    return launch.uid


@pytest.mark.engine
def test_local_image_phases_are_preparing_and_creating(docker_kit: DockerKit) -> None:
    uid = lived(docker_kit)
    assert phases(docker_kit, uid) == ["preparing", "creating"]
    kinds = [type(event) for event in docker_kit.events.of(uid)]
    assert kinds == [BuildingEvent, BuildingEvent, StartedEvent, EndedEvent]


@pytest.fixture
def registry(docker_kit: DockerKit, tmp_path: Path) -> Iterator[Distribution]:
    with serving(tmp_path / "registry") as registry:
        yield registry


@pytest.mark.engine
def test_pulled_image_adds_the_pulling_phase(docker_kit: DockerKit, registry: Distribution) -> None:
    uid = lived(docker_kit, image=registry.push())
    assert phases(docker_kit, uid) == ["preparing", "pulling", "preparing", "creating"]


@pytest.mark.engine
def test_failing_pull_reports_each_failed_try(
    docker_kit: DockerKit, registry: Distribution
) -> None:
    image = registry.push()
    registry.stop()
    launch = docker_kit.launch("true", image=image)
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).failure_kind is FailureKind.SYSTEM
    assert phases(docker_kit, launch.uid) == ["preparing", "pulling"]
    tries = [e.text for e in docker_kit.events.of(launch.uid) if isinstance(e, StageFailedEvent)]
    assert [text.split(":")[0] for text in tries] == ["try 1 of 3 failed", "try 2 of 3 failed"]
    assert all("connection refused" in text for text in tries)


def test_inputs_are_fetched_before_the_creation(real_kit: Kit, web: Web) -> None:
    web.files["/text"] = b"x"
    uid = lived(real_kit, inputs=(Input("/in/text", f"{web.url}/text"),))
    assert phases(real_kit, uid) == ["preparing", "creating"]


def test_health_check_adds_the_checking_phase(real_kit: Kit) -> None:
    launch = real_kit.launch(*real_kit.obedient(), health_check=READY, stop_grace_seconds=1.0)
    real_kit.driver.start(launch)
    real_kit.events.started(launch.uid)
    assert phases(real_kit, launch.uid) == ["preparing", "creating", "checking"]


def test_plain_process_phases_are_preparing_and_creating(process_kit: ProcessKit) -> None:
    assert phases(process_kit, lived(process_kit)) == ["preparing", "creating"]


def test_pipeline_process_phases_are_preparing_and_creating(process_kit: ProcessKit) -> None:
    uid = lived(process_kit, "true", result_file="/out/result")
    assert phases(process_kit, uid) == ["preparing", "creating"]


def test_runner_phases_are_preparing_and_creating(tmp_path: Path) -> None:
    observations = [
        RunnerObservation(RunnerPhase.QUEUED, {"n": 1}, poll_seconds=0),
        RunnerObservation(RunnerPhase.INITIALIZING, {"n": 2}, poll_seconds=0),
        RunnerObservation(RunnerPhase.RUNNING, {"n": 3}, poll_seconds=0),
        RunnerObservation(RunnerPhase.SUCCEEDED, {"n": 4}),
    ]
    runner = Scripted(lambda context: observations[context.state.get("n", 0)])
    with Outside() as outside, runner_kit(tmp_path, outside, scripted=runner) as kit:
        assert phases(kit, lived(kit)) == ["preparing", "creating"]


def test_each_phase_has_the_time_at_which_it_was_entered(real_kit: Kit) -> None:
    uid = lived(real_kit)
    events = [
        event
        for event in real_kit.events.of(uid)
        if isinstance(event, BuildingEvent | StartedEvent)
    ]
    instants = [event.at for event in events]
    assert all(at is not None for at in instants)
    assert all(earlier <= later for earlier, later in pairwise(instants[:-1]))  # type: ignore[operator]


def test_waiting_attempt_is_preparing(real_kit: Kit) -> None:
    """However many were ordered at once: no order is without an answer."""
    launches = [real_kit.launch("true") for _ in range(40)]
    for launch in launches:
        real_kit.driver.start(launch)
        first = real_kit.events.of(launch.uid)[:1]
        assert [event.phase for event in first if isinstance(event, BuildingEvent)] == ["preparing"]
    for launch in launches:
        assert real_kit.events.ended(launch.uid).exit_code == 0


@pytest.mark.engine
def test_adopted_attempt_that_was_not_created_prepares_anew(docker_kit: DockerKit) -> None:
    launch = docker_kit.launch("true")
    docker_kit.begin_again()
    (docker_kit.home / "work" / launch.uid).mkdir(parents=True)
    docker_kit.driver.start(launch)
    assert docker_kit.events.ended(launch.uid).exit_code == 0
    assert phases(docker_kit, launch.uid) == ["preparing", "creating"]


# ------------------------------------------------------------------------ an engine that hangs


@pytest.fixture
def line(docker_kit: DockerKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    """A line to the machine's engine, on which requests can be held."""
    cable = Cable(str(tmp_path / "engine"), find_socket())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    docker_kit.begin_again()
    yield cable
    cable.hold(None)
    docker_kit.driver.close()
    monkeypatch.delenv("DOCKER_HOST")
    docker_kit.begin_again()
    cable.close()


@pytest.mark.engine
def test_creation_that_hangs_is_reported_as_creating(docker_kit: DockerKit, line: Cable) -> None:
    line.hold(CREATE)
    launch = docker_kit.launch("true")
    docker_kit.driver.start(launch)
    until(lambda: phases(docker_kit, launch.uid) == ["preparing", "creating"])
    line.hold(None)
    assert docker_kit.events.ended(launch.uid).exit_code == 0


@pytest.mark.engine
def test_attempt_waiting_behind_hanging_creations_is_preparing(
    docker_kit: DockerKit, line: Cable
) -> None:
    """Its creation has not begun, so that the time limit of creations does not run."""
    places = docker_kit.config().concurrency
    line.hold(CREATE)
    launches = [docker_kit.launch("true") for _ in range(places + 3)]
    for launch in launches:
        docker_kit.driver.start(launch)

    def creating() -> int:
        return sum("creating" in phases(docker_kit, launch.uid) for launch in launches)

    until(lambda: creating() == places)
    assert not threading.Event().wait(0.3)
    assert creating() == places
    uids = [launch.uid for launch in launches]
    waiting = [uid for uid in uids if phases(docker_kit, uid) == ["preparing"]]
    assert len(waiting) == 3
    docker_kit.driver.stop(waiting[0], grace_seconds=0.0, force=False)
    ended = docker_kit.events.ended(waiting[0])
    assert (ended.reason, ended.never_created) == (STOPPED, True)
    line.hold(None)
    for launch in launches:
        docker_kit.events.ended(launch.uid)
