"""The engine is stopped, or killed, while tasks run: they end right, once, and nothing is left."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.states import FailureKind
from tests.conformance.kit import DockerKit, until
from tests.conformance.own_engine import OwnEngine, OwnEngineKit
from tests.harness.web import Web
from workers.attempt.events import EndedEvent, Launch, StartedEvent
from workers.attempt.outcome import INPUTS

pytestmark = pytest.mark.engine

# A shell that is its container's first process ignores SIGTERM unless it sets a trap.
COUNTS = (
    "trap 'exit 4' USR1; i=0; while [ $i -lt {limit} ]; do echo $i; echo $i >&2; i=$((i+1));"
    " sleep 0.1; done; exit 4"
)
FEW, MANY = 20, 3000
MAY_BE_LOST = 1
ENDS_SOON = "sleep 0.7; exit 3"
OBEYS = "trap 'exit 143' TERM; echo ready; sleep 2 & wait; exit 5"


@pytest.fixture
def begin(
    image: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bool], tuple[OwnEngine, DockerKit]]]:
    """Start an engine, with live-restore or without, and a kit on it."""
    ends = ExitStack()  # an engine ends even if its kit cannot be closed

    def begin(live_restore: bool) -> tuple[OwnEngine, DockerKit]:
        engine = OwnEngine(Path(tempfile.mkdtemp(dir="/tmp")), live_restore=live_restore)
        ends.callback(engine.close)
        engine.start()
        engine.load_image()
        monkeypatch.setenv("DOCKER_HOST", engine.line)
        kit = OwnEngineKit(tmp_path / "cell")
        ends.callback(kit.close)
        return engine, kit

    with ends:
        yield begin


def started(kit: DockerKit, script: str, **spec: Any) -> Launch:
    """A launch that runs."""
    launch = kit.launch("sh", "-c", script, **spec)
    kit.driver.start(launch)
    kit.events.started(launch.uid)
    return launch


def has_gone(pid: int) -> bool:
    """Whether a process ended."""
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def check_once(kit: DockerKit, launch: Launch) -> None:
    """Check that it was started once, and that its start and end were reported once."""
    assert kit.starts(launch.uid) <= 1  # an engine that was killed forgets what it did
    for kind in (StartedEvent, EndedEvent):
        assert sum(isinstance(event, kind) for event in kit.events.of(launch.uid)) == 1


def check_counted(kit: DockerKit, launch: Launch, *, may_lack: int) -> int:
    """Nothing that it wrote is missing (but so many lines), or kept twice; how much it was.

    An engine that is killed loses the line that it had read and not yet written.
    """
    for stream in ("stdout", "stderr"):
        numbers = [int(line) for line in kit.log(launch.uid, stream).split()]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= numbers[-1] + 1 - may_lack
    return numbers[-1] + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("live_restore", [True, False], ids=["live", "plain"])
def test_tasks_keep_their_exit_codes_across_an_engine_restart(
    begin: Callable[[bool], tuple[OwnEngine, DockerKit]],
    live_restore: bool,
    number: signal.Signals,
) -> None:
    engine, kit = begin(live_restore)
    # Without live-restore an engine that ends, or comes back, stops all its containers.
    limit = MANY if live_restore else FEW
    scripts = (COUNTS.format(limit=limit), ENDS_SOON, OBEYS)
    counts, soon, obeys = (started(kit, script) for script in scripts)
    kit.wait_until_ready(obeys.uid)
    until(lambda: "3\n" in kit.log(counts.uid))
    pid = kit.inspect(soon.uid)["State"]["Pid"]
    engine.end(number)
    until(lambda: has_gone(pid))
    engine.start()
    if live_restore:
        kit.outside.kill(f"cellrun-{counts.uid}", "USR1")
    assert kit.events.ended(counts.uid).exit_code == 4
    assert kit.events.ended(soon.uid).exit_code == 3
    lost = MAY_BE_LOST if number is signal.SIGKILL else 0
    assert check_counted(kit, counts, may_lack=lost) == FEW or live_restore
    ended = kit.events.ended(obeys.uid)
    end = (5, None) if live_restore else (143, FailureKind.OUTSIDE)
    assert (ended.exit_code, ended.failure_kind) == end
    for launch in (counts, soon, obeys):
        check_once(kit, launch)
        kit.driver.remove(launch.uid)
    until(lambda: not list(kit.driver.find()))
    until(lambda: not list(kit.home.glob("work/*")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_standard_input_that_an_engine_restart_cuts_off_is_no_success(
    begin: Callable[[bool], tuple[OwnEngine, DockerKit]], web: Web, number: signal.Signals
) -> None:
    engine, kit = begin(True)
    web.files["/text"] = bytes(20_000_000)
    inputs = (Input("/in/text", f"{web.url}/text"),)
    whole, cut = (
        started(kit, text, inputs=inputs, stdin="/in/text")
        for text in ("cat > /dev/null; echo ready; sleep 5", "echo ready; sleep 5; wc -c; sleep 5")
    )
    kit.wait_until_ready(whole.uid)
    kit.wait_until_ready(cut.uid)
    engine.end(number)
    engine.start()
    ended = kit.events.ended(cut.uid)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, INPUTS), ended
    ended = kit.events.ended(whole.uid)
    assert (ended.exit_code, ended.reason) == (0, None), ended


def test_attempts_are_adopted_after_an_engine_restart_during_cell_downtime(
    begin: Callable[[bool], tuple[OwnEngine, DockerKit]],
) -> None:
    engine, kit = begin(True)
    counts, soon = (started(kit, script) for script in (COUNTS.format(limit=MANY), ENDS_SOON))
    kit.driver.close()
    pid = kit.inspect(soon.uid)["State"]["Pid"]
    engine.end(signal.SIGKILL)
    until(lambda: has_gone(pid))
    kit.begin_again()
    for launch in (counts, soon):
        kit.driver.adopt(launch)
    engine.start()
    kit.events.started(counts.uid)
    kit.outside.kill(f"cellrun-{counts.uid}", "USR1")
    assert [kit.events.ended(launch.uid).exit_code for launch in (counts, soon)] == [4, 3]
    check_counted(kit, counts, may_lack=MAY_BE_LOST)
    for launch in (counts, soon):
        check_once(kit, launch)
