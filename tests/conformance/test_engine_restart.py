"""The engine is stopped, or killed, while tasks run: they end right, once, and nothing is left."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kit import DockerKit, until
from tests.conformance.own_engine import OwnEngine, OwnEngineKit
from workers.attempt.events import Ended, Launch, Started

pytestmark = pytest.mark.engine

# A shell that is its container's first process does not hear SIGTERM unless it asks to.
COUNTS = "i=0; while [ $i -lt 20 ]; do echo $i; echo $i >&2; i=$((i+1)); sleep 0.1; done; exit 4"
COUNTED = "".join(f"{number}\n" for number in range(20))
ENDS_SOON = "sleep 0.7; exit 3"
OBEYS = "trap 'exit 143' TERM; echo ready; sleep 2 & wait; exit 5"


@pytest.fixture
def begin(
    image: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bool], tuple[OwnEngine, DockerKit]]]:
    """Start an engine, with live-restore or without, and a kit on it."""
    ends: list[Callable[[], None]] = []

    def begin(live_restore: bool) -> tuple[OwnEngine, DockerKit]:
        engine = OwnEngine(Path(tempfile.mkdtemp(dir="/tmp")), live_restore=live_restore)
        ends.append(engine.close)
        engine.start()
        engine.load_image()
        monkeypatch.setenv("DOCKER_HOST", engine.line)
        kit = OwnEngineKit(tmp_path / "cell")
        ends.append(kit.close)
        return engine, kit

    yield begin
    for end in reversed(ends):
        end()


def started(kit: DockerKit, script: str, **spec: Any) -> Launch:
    """A launch that runs."""
    launch = kit.launch("sh", "-c", script, **spec)
    kit.driver.start(launch)
    kit.told.started(launch.uid)
    return launch


def has_gone(pid: int) -> bool:
    """Whether a process ended."""
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def check_once(kit: DockerKit, launch: Launch) -> None:
    """It was started once, and its start and end were told once."""
    assert kit.starts(launch.uid) <= 1  # an engine that was killed forgets what it did
    for kind in (Started, Ended):
        assert sum(isinstance(event, kind) for event in kit.told.of(launch.uid)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("live_restore", [True, False], ids=["live", "plain"])
def test_tasks_end_right_though_their_engine_is_restarted(
    begin: Callable[[bool], tuple[OwnEngine, DockerKit]],
    live_restore: bool,
    number: signal.Signals,
) -> None:
    engine, kit = begin(live_restore)
    counts, soon, obeys = (started(kit, script) for script in (COUNTS, ENDS_SOON, OBEYS))
    kit.wait_until_ready(obeys.uid)
    until(lambda: "3\n" in kit.log(counts.uid))
    pid = kit.inspect(soon.uid)["State"]["Pid"]
    engine.end(number)
    until(lambda: has_gone(pid))
    engine.start()
    assert kit.told.ended(counts.uid).exit_code == 4
    assert kit.told.ended(soon.uid).exit_code == 3
    assert (kit.log(counts.uid), kit.log(counts.uid, "stderr")) == (COUNTED, COUNTED)
    # Without live-restore an engine that ends, or comes back, tells all it has to end.
    assert kit.told.ended(obeys.uid).exit_code == (5 if live_restore else 143)
    for launch in (counts, soon, obeys):
        check_once(kit, launch)
        kit.driver.remove(launch.uid)
    until(lambda: not list(kit.driver.find()))
    until(lambda: not list(kit.home.glob("work/*")))


def test_engine_that_is_restarted_while_the_cell_is_away_is_found_as_it_is(
    begin: Callable[[bool], tuple[OwnEngine, DockerKit]],
) -> None:
    engine, kit = begin(True)
    counts, soon = (started(kit, script) for script in (COUNTS, ENDS_SOON))
    kit.driver.close()
    pid = kit.inspect(soon.uid)["State"]["Pid"]
    engine.end(signal.SIGKILL)
    until(lambda: has_gone(pid))
    kit.begin_again()
    for launch in (counts, soon):
        kit.driver.adopt(launch)
    engine.start()
    assert [kit.told.ended(launch.uid).exit_code for launch in (counts, soon)] == [4, 3]
    assert kit.log(counts.uid) == COUNTED
    for launch in (counts, soon):
        check_once(kit, launch)
