"""What a task may wish of its container, each held against what stands inside it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.conformance.kit import DockerKit, until
from workers.attempt.capture import Capture
from workers.attempt.engine import Life, Placed
from workers.attempt.events import Launch
from workers.drivers.docker import DockerEngine

pytestmark = pytest.mark.engine


@pytest.fixture
def engine(docker_kit: DockerKit) -> Iterator[DockerEngine]:
    """The engine itself, for what no step asks for yet; the kit clears what it leaves."""
    config = docker_kit.config()
    with closing(
        DockerEngine(installation=config.installation, cell=config.name, home=config.home)
    ) as engine:
        yield engine


def output(engine: DockerEngine, launch: Launch, placed: Sequence[Placed], folder: Path) -> str:
    """What the command of `launch` printed."""
    (folder / "work" / launch.uid).mkdir(parents=True)
    engine.create(launch, placed)
    engine.put(launch, placed)
    engine.start(launch.uid)
    until(lambda: (view := engine.view(launch.uid)) and view.life is Life.ENDED)
    engine.copy_logs(launch.uid, Capture(folder / launch.uid, 10_000), follow=False)
    return (folder / launch.uid / "stdout").read_text()


# ----------------------------------------------------------------------------- files of the host


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_bound_stands_there_itself_and_can_be_written_only_if_it_may(
    docker_kit: DockerKit, engine: DockerEngine, tmp_path: Path, read_only: bool
) -> None:
    (tmp_path / "key").write_text("the key\n")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o777)
    (tmp_path / "copied").write_text("copied\n")
    placed = [
        Placed("/run/secrets/key", tmp_path / "key", bound=True),
        Placed("/gang", tmp_path / "ours", writable=True, bound=True),
        Placed("/in/copied", tmp_path / "copied"),
    ]
    script = "cat /run/secrets/key /in/copied; echo x >> /run/secrets/key; echo seen > /gang/from"
    launch = docker_kit.launch("sh", "-c", script, read_only=read_only)
    assert output(engine, launch, placed, docker_kit.home) == "the key\ncopied\n"
    assert (tmp_path / "key").read_text() == "the key\n"
    assert (tmp_path / "ours" / "from").read_text() == "seen\n"
    mounts = docker_kit.inspect(launch.uid)["HostConfig"]["Mounts"]
    assert len(mounts) == (3 if read_only else 2)
