"""The scenarios' stages: the loop on PostgreSQL, beside cells that are played or run programs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

from controlplane import clock
from controlplane.config.stack.parts.engine import require_engine
from controlplane.config.stack.parts.image import require_image
from tests.conformance.cable import Cable
from tests.integration.loop.conftest import Loop, loop, many_slots
from tests.scenarios.cells import LiveStage, RealCell
from tests.scenarios.stage import Stage
from workers.drivers.docker.connection import find_socket

__all__ = ["loop", "many_slots"]

DOCKER = pytest.param("docker", marks=pytest.mark.engine)


@pytest.fixture
def stage(loop: Loop) -> Iterator[Stage]:
    """An empty installation with one user, at a moment that only the scenario moves on."""
    found = Stage(loop.owner, loop.wire, loop.inbox)
    clock.use(found.now)
    yield found
    clock.use(None)


@pytest.fixture
def live(loop: Loop, live_server: LiveServer, tmp_path: Path) -> Iterator[LiveStage]:
    """An empty installation with one user and its web, in the machine's time."""
    found = LiveStage(loop.owner, loop.wire, loop.inbox, url=live_server.url, home=tmp_path)
    with override_settings(
        CELLRUN=settings.CELLRUN.model_copy(update={"public_url": live_server.url})
    ):
        yield found
        found.close()


@pytest.fixture(scope="session")
def image() -> None:
    """The engine answers and has the demo image."""
    require_image(require_engine(print), print)


@pytest.fixture
def cable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    """What stands between cells and their engine."""
    cable = Cable(str(tmp_path / "engine"), find_socket())
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    yield cable
    cable.close()


@pytest.fixture
def line(cable: Cable, live: LiveStage) -> Iterator[Cable]:
    """The line to the engine, on which requests can be held; requested before the cell."""
    yield cable
    cable.hold(None)  # what was held ends before the cells do


@pytest.fixture
def cell_settings() -> dict[str, Any]:
    """The settings of real cells that are not as by default; a module may have its own."""
    return {}


@pytest.fixture
def process_cell(live: LiveStage, cell_settings: dict[str, Any]) -> RealCell:
    """A cell that runs processes."""
    return live.open_cell("process", **cell_settings)


@pytest.fixture
def docker_cell(live: LiveStage, image: None, cell_settings: dict[str, Any]) -> RealCell:
    """A cell that runs containers; its scenarios are marked `engine`."""
    return live.open_cell("docker", **cell_settings)


@pytest.fixture(params=[DOCKER, "process"])
def cell(request: pytest.FixtureRequest) -> RealCell:
    """A cell that runs programs, of each driver."""
    found: RealCell = request.getfixturevalue(f"{request.param}_cell")
    return found
