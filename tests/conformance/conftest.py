"""The drivers under test: each test that uses `kit` runs with every driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config.stack.parts.engine import require_engine
from controlplane.config.stack.parts.image import require_image
from tests.conformance.kit import KITS, DockerKit, Kit, ProcessKit, made_kit
from tests.harness.web import Web

DOCKER = pytest.param("docker", marks=pytest.mark.engine)


@pytest.fixture(scope="session")
def image() -> None:
    """The engine answers and has the demo image."""
    require_image(require_engine(print), print)


@pytest.fixture(params=[DOCKER if name == "docker" else name for name in KITS])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """Every driver."""
    yield from _kit(request, str(request.param), tmp_path)


@pytest.fixture(params=[DOCKER, "process"])
def real_kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """The drivers that run programs."""
    yield from _kit(request, str(request.param), tmp_path)


@pytest.fixture
def docker_kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DockerKit]:
    """Containers only; its tests are marked `engine`."""
    for kit in _kit(request, "docker", tmp_path):
        assert isinstance(kit, DockerKit)
        yield kit


@pytest.fixture
def process_kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessKit]:
    """Processes only."""
    for kit in _kit(request, "process", tmp_path):
        assert isinstance(kit, ProcessKit)
        yield kit


def _kit(request: pytest.FixtureRequest, name: str, home: Path) -> Iterator[Kit]:
    if name == "docker":
        request.getfixturevalue("image")
    with made_kit(name, home / "cell") as kit:
        yield kit


@pytest.fixture
def web() -> Iterator[Web]:
    """A real HTTP server for inputs and output."""
    with Web() as web:
        yield web
