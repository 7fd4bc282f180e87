"""Images from a real registry: pulls by policy, refusals, and progress."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.contract.messages.reports import COMMAND, IMAGE, REGISTRY
from controlplane.contract.states import FailureKind, Phase
from tests.conformance.cable import Cable
from tests.conformance.distribution import Distribution, serving
from tests.conformance.kit import DockerKit, until
from workers.attempt.events import BuildingEvent, EndedEvent
from workers.attempt.outcome import STOPPED

pytestmark = pytest.mark.engine

NOISE = 1_000_000
SLOW = 100_000.0  # bytes a second
QUICKER = 800_000.0
AT_ONCE = float("inf")


@pytest.fixture
def registry(docker_kit: DockerKit, tmp_path: Path) -> Iterator[Distribution]:
    """A registry that everybody may read."""
    with serving(tmp_path / "registry") as registry:
        yield registry


@pytest.fixture
def line(registry: Distribution) -> Iterator[Cable]:
    """A line to the registry that can be cut and made slow."""
    cable = Cable(("127.0.0.1", 0), ("127.0.0.1", registry.port))
    yield cable
    cable.throttle(AT_ONCE)
    cable.close()


def ran(kit: DockerKit, image: str, policy: str = "if_not_present") -> EndedEvent:
    """The end of `true` in that image."""
    launch = kit.launch("true", image=image, pull_policy=policy)
    kit.driver.start(launch)
    ended = kit.events.ended(launch.uid)
    kit.driver.remove(launch.uid)
    return ended


def progress(kit: DockerKit, uid: str) -> list[int]:
    """Return the reported percents of an attempt's pull."""
    events = [event for event in kit.events.of(uid) if isinstance(event, BuildingEvent)]
    return [e.progress for e in events if e.phase is Phase.PULLING and e.progress is not None]


def test_image_is_pulled_and_runs(docker_kit: DockerKit, registry: Distribution) -> None:
    image = registry.push()
    ended = ran(docker_kit, image)
    assert (ended.exit_code, ended.reason) == (0, None), ended.message
    assert ended.usage is not None
    assert ended.usage["image_digest"].startswith("sha256:")
    assert "pulled_bytes" not in ended.usage, "all its layers are there, by another name"


def test_pull_policy_decides_whether_the_registry_is_contacted(
    docker_kit: DockerKit, registry: Distribution
) -> None:
    image = registry.push()
    assert ran(docker_kit, image, "never").reason == IMAGE
    assert ran(docker_kit, image, "always").exit_code == 0
    registry.stop()
    assert ran(docker_kit, image, "never").exit_code == 0
    assert ran(docker_kit, image).exit_code == 0
    ended = ran(docker_kit, image, "always")
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, REGISTRY)
    assert "connection refused" in str(ended.message)


def test_missing_image_is_a_user_failure(docker_kit: DockerKit, registry: Distribution) -> None:
    image = registry.push()
    for name in (f"{image}-other", image.replace("/conformance/", "/nowhere/")):
        ended = ran(docker_kit, name)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE)
        assert "manifest unknown" in str(ended.message)


def test_unauthorized_image_is_a_user_failure(docker_kit: DockerKit, tmp_path: Path) -> None:
    with serving(tmp_path / "closed", closed=True) as closed:
        ended = ran(docker_kit, closed.push())
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE)
        assert "no basic auth credentials" in str(ended.message)


def test_slow_pull_reports_progress_in_percent(
    docker_kit: DockerKit, registry: Distribution, line: Cable
) -> None:
    image = registry.seen_through(line.port, registry.push(NOISE))
    line.throttle(QUICKER)
    launch = docker_kit.launch("/nothing", image=image)
    docker_kit.driver.start(launch)
    ended = docker_kit.events.ended(launch.uid)
    assert ended.reason == COMMAND
    assert ended.usage is not None
    assert ended.usage["pulled_bytes"] >= NOISE
    percents = progress(docker_kit, launch.uid)
    assert percents == sorted(percents)
    assert len([percent for percent in percents if 0 < percent < 100]) >= 3


def test_pull_without_waiters_is_cancelled(
    docker_kit: DockerKit, registry: Distribution, line: Cable
) -> None:
    image = registry.seen_through(line.port, registry.push(NOISE))
    line.throttle(SLOW)
    first, second = (docker_kit.launch("/nothing", image=image) for _ in range(2))
    for launch in (first, second):
        docker_kit.driver.start(launch)
        until(lambda uid=launch.uid: progress(docker_kit, uid))  # type: ignore[misc]
    docker_kit.driver.stop(first.uid, grace_seconds=60, force=False)
    assert docker_kit.events.ended(first.uid).reason == STOPPED
    known = progress(docker_kit, second.uid)
    until(lambda: len(progress(docker_kit, second.uid)) > len(known) + 1)
    docker_kit.driver.stop(second.uid, grace_seconds=60, force=False)
    ended = docker_kit.events.ended(second.uid)
    assert (ended.failure_kind, ended.reason, ended.started_at) == (None, STOPPED, None)
    assert ended.never_created
    until(lambda: line.is_idle)
    assert not docker_kit.driver.find()


@pytest.mark.soak
def test_pull_recovers_from_a_connection_loss_within_a_layer(
    docker_kit: DockerKit, registry: Distribution, line: Cable
) -> None:
    # The engine itself waits five seconds before its next try.
    image = registry.seen_through(line.port, registry.push(NOISE))
    line.throttle(SLOW)
    launch = docker_kit.launch("/nothing", image=image)
    docker_kit.driver.start(launch)
    until(lambda: progress(docker_kit, launch.uid))
    line.pull()
    line.throttle(AT_ONCE)
    line.plug()
    assert docker_kit.events.ended(launch.uid).reason == COMMAND
