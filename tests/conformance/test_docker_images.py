"""Private images are pulled with the login that the task names, and with no other."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.contract.messages.launch_context import Registry
from controlplane.contract.messages.reports import IMAGE
from controlplane.contract.states import FailureKind
from tests.conformance.distribution import PASSWORD, USER, serving
from tests.conformance.kit import DockerKit
from workers.attempt.outcome import judge_pull_error
from workers.attempt.pulls import Pull, Pulls
from workers.attempt.runtime import EngineError
from workers.drivers.docker.driver import DockerEngine

pytestmark = pytest.mark.engine

NOISE = 1_000_000


@pytest.fixture
def engine(docker_kit: DockerKit) -> Iterator[DockerEngine]:
    """The engine itself."""
    config = docker_kit.config()
    with closing(
        DockerEngine(installation=config.installation, cell=config.name, home=config.home)
    ) as engine:
        yield engine


def over(pull: Pull) -> Pull:
    assert pull.wait(60)
    return pull


def test_local_image_needs_the_permission_of_its_registry_with_always(
    docker_kit: DockerKit, engine: DockerEngine, tmp_path: Path
) -> None:
    with serving(tmp_path / "closed", closed=True) as closed:
        image = closed.push(NOISE)
        assert over(Pulls(engine).join(image, Registry(USER, PASSWORD))).error is None
        assert engine.find_image(image) is not None
        launch = docker_kit.launch("true", image=image, pull_policy="always")
        docker_kit.driver.start(launch)
        ended = docker_kit.events.ended(launch.uid)
        assert (ended.failure_kind, ended.reason) == (FailureKind.USER, IMAGE)


def test_id_of_a_local_image_is_no_permission_with_always(
    docker_kit: DockerKit, engine: DockerEngine, tmp_path: Path
) -> None:
    with serving(tmp_path / "closed", closed=True) as closed:
        image = closed.push(NOISE)
        assert over(Pulls(engine).join(image, Registry(USER, PASSWORD))).error is None
        full = str(docker_kit.outside.inspect_image(image)["Id"])
        for name in (full, full.removeprefix("sha256:")[:12]):
            launch = docker_kit.launch("true", image=name, pull_policy="always")
            docker_kit.driver.start(launch)
            ended = docker_kit.events.ended(launch.uid)
            # Of the user's fault if the registry of that name answers, which needs the internet.
            assert (ended.exit_code, ended.failure_kind is not None) == (None, True)
            assert docker_kit.starts(launch.uid) == 0
        usual = docker_kit.launch("true", image=full)
        docker_kit.driver.start(usual)
        assert docker_kit.events.ended(usual.uid).reason != IMAGE


def test_private_image_is_pulled_only_with_valid_credentials(
    engine: DockerEngine, tmp_path: Path
) -> None:
    with serving(tmp_path / "closed", closed=True) as closed:
        image = closed.push(NOISE)
        pulls = Pulls(engine)
        anonymous, intruder = None, Registry(USER, "not the password")
        reader = Registry(USER, PASSWORD)
        joined = [pulls.join(image, login) for login in (anonymous, intruder, reader)]
        assert len(set(map(id, joined))) == 3
        for pull in joined[:2]:
            error = over(pull).error
            assert isinstance(error, EngineError)
            failure = judge_pull_error(str(error), error.status)
            assert (failure.kind, failure.reason) == (FailureKind.USER, IMAGE), str(error)
            assert "not the password" not in f"{error!r} {pull.registry!r}"
        assert over(joined[2]).error is None
        assert joined[2].bytes >= NOISE
        digest = engine.find_image(image)
        assert digest is not None
        assert digest.startswith("sha256:")
        # The registry knows it by that name.
        assert engine.find_image(f"{image.rsplit(':', 1)[0]}@{digest}") == digest
        assert engine.find_image(f"{image}-other") is None
