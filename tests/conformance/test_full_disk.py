"""A full disk of the cell or the engine is reported, and does not end running attempts."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit, Kit, until
from tests.conformance.own_engine import OwnEngine, OwnEngineKit, require_root
from tests.harness.web import Web
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import DISK

pytestmark = pytest.mark.engine

MIB = 2**20
ENGINE_MIB = 24  # a new engine's own files, the image, and a little


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[None]:
    """A disk of its own, in memory, at `folder`."""
    require_root()
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "cellrun", folder], check=True)
    try:
        yield
    finally:
        if folder.is_mount():
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_home(docker_kit: DockerKit) -> Iterator[DockerKit]:
    """A kit whose home is a disk of 2 MiB."""
    docker_kit.driver.close()
    with small_disk(docker_kit.home, f"size={2 * MIB}"):
        docker_kit.begin_again()
        yield docker_kit
        docker_kit.driver.close()
    docker_kit.begin_again()


def fill(folder: Path) -> Path:
    """Leave no room on the disk of a folder; the file to remove for it."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(64 * 1024))
            except OSError:
                break
    return path


def ran(kit: Kit, script: str, **spec: Any) -> EndedEvent:
    """The end of a shell script."""
    launch = kit.launch("sh", "-c", script, **spec)
    kit.driver.start(launch)
    return kit.events.ended(launch.uid)


def check_disk_failure(ended: EndedEvent) -> None:
    """Check for a system failure after three tries whose message names the full disk."""
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, DISK), ended.message
    assert "space left" in str(ended.message)


def test_input_without_disk_space_is_a_system_failure(small_home: DockerKit, web: Web) -> None:
    web.files["/large"] = bytes(3 * MIB)
    ended = ran(small_home, "true", inputs=(Input("/in/large", f"{web.url}/large"),))
    check_disk_failure(ended)
    assert ended.never_created
    small_home.driver.remove(ended.uid)
    until(lambda: not list(small_home.home.glob("work/*")))
    web.files["/small"] = b"x"
    inputs = (Input("/in/small", f"{web.url}/small"),)
    assert ran(small_home, "cat /in/small", inputs=inputs).exit_code == 0


def test_workspace_without_disk_space_is_a_system_failure(small_home: DockerKit) -> None:
    filling = fill(small_home.home)
    ended = ran(small_home, "true")
    check_disk_failure(ended)
    assert ended.never_created
    filling.unlink()
    assert ran(small_home, "true").exit_code == 0


def test_output_waits_for_disk_space_while_the_task_continues(
    small_home: DockerKit,
) -> None:
    script = (
        "echo ready; while [ ! -e /tmp/go ]; do sleep 0.05; done; i=0;"
        " while [ $i -lt 3000 ]; do echo line $i; echo line $i >&2; i=$((i+1)); done;"
        " while [ ! -e /tmp/end ]; do sleep 0.05; done; exit 4"
    )
    launch = small_home.launch("sh", "-c", script)
    small_home.driver.start(launch)
    small_home.wait_until_ready(launch.uid)
    filling = fill(small_home.home)
    touch(small_home, launch.uid, "/tmp/go")
    until(lambda: b"line 2999" in small_home.outside.logs(f"cellrun-{launch.uid}"))
    assert "line 2999" not in small_home.log(launch.uid)
    filling.unlink()
    until(lambda: "line 2999" in small_home.log(launch.uid))
    touch(small_home, launch.uid, "/tmp/end")
    assert small_home.events.ended(launch.uid).exit_code == 4
    lines = "".join(f"line {number}\n" for number in range(3000))
    assert small_home.log(launch.uid) == f"ready\n{lines}"
    assert small_home.log(launch.uid, "stderr") == lines


def test_task_without_disk_space_for_output_keeps_its_exit_code(
    small_home: DockerKit,
) -> None:
    script = "head -c 8000000 /dev/zero; echo error >&2; sleep 1; exit 4"
    ended = ran(small_home, script)
    assert (ended.exit_code, ended.failure_kind) == (4, None)


def touch(kit: DockerKit, uid: str, path: str) -> None:
    """Make a file in a running container."""
    made = kit.outside.exec_create(f"cellrun-{uid}", ["touch", path])
    kit.outside.exec_start(made["Id"])


@pytest.fixture
def small_engine(
    image: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[OwnEngine, DockerKit]]:
    """An engine that has little room, and a kit on it."""
    engine = OwnEngine(Path(tempfile.mkdtemp(dir="/tmp")))
    with small_disk(engine.folder / "data", f"size={ENGINE_MIB * MIB}"), ExitStack() as ends:
        ends.callback(engine.close)
        engine.start()
        engine.load_image()
        monkeypatch.setenv("DOCKER_HOST", engine.line)
        kit = OwnEngineKit(tmp_path / "cell")
        ends.callback(kit.close)
        yield engine, kit


def test_full_engine_disk_fails_the_start_until_space_is_freed(
    small_engine: tuple[OwnEngine, DockerKit],
) -> None:
    engine, kit = small_engine
    running = kit.launch("sh", "-c", "echo ready; while [ ! -e /tmp/end ]; do sleep 0.1; done")
    kit.driver.start(running)
    kit.wait_until_ready(running.uid)
    filling = fill(engine.folder / "data")
    check_disk_failure(ran(kit, "true"))
    filling.unlink()
    assert ran(kit, "echo hello; exit 3").exit_code == 3
    touch(kit, running.uid, "/tmp/end")
    assert kit.events.ended(running.uid).exit_code == 0
