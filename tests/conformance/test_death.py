"""The cell process is killed with SIGKILL, for real: what it began goes on, and is found again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.kit import Kit, until
from tests.harness.web import Answer, Request, Web
from workers.attempt.outcome import VANISHED

ROOT = Path(__file__).parents[2]

CELL = textwrap.dedent(
    """
    import json, os, sys, time
    from pathlib import Path
    from controlplane.contract.messages.orders import GroupSpec, Input, RunAttempt
    from workers.attempt.events import Launch
    from workers.config import CellConfig
    from workers.drivers.registry import make_driver

    driver, home, installation, *scripts = sys.argv[1:]
    config = CellConfig(
        name="cell-1", key=b"k" * 32, home=Path(home), broker_url="", control_url="",
        installation=installation, capacity={"gpu": 4}, driver=driver,
    )
    made = make_driver(
        config,
        # One write each: they come from several threads.
        lambda event: os.write(1, f"{type(event).__name__} {event.uid}\\n".encode()),
    )
    for number, script in enumerate(scripts):
        spec = GroupSpec(
            1, 7, "suite", "main", 1, image="cellrun/demo:latest", network="none",
            command=("sh", "-c", script),
            resources=json.loads(os.environ["RESOURCES"]),
            inputs=tuple(Input("/in", url) for url in os.environ.get("INPUTS", "").split()),
        )
        run = RunAttempt(f"{installation}-{number}", 1, 11, 0, 1, 0.0)
        made.start(Launch(run, spec, {"CELLRUN_ATTEMPT_UID": run.uid}))
    time.sleep(300)
    """
)


@contextlib.contextmanager
def cell_of(
    kit: Kit, *scripts: str, inputs: str = "", resources: Mapping[str, int] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that starts the scripts, and is killed at last."""
    command = [sys.executable, "-c", CELL, kit.name, str(kit.home), kit.config().installation]
    with subprocess.Popen(
        [*command, *scripts],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "INPUTS": inputs, "RESOURCES": json.dumps(resources or {})},
    ) as cell:
        try:
            yield cell
        finally:
            cell.send_signal(signal.SIGKILL)


def test_attempts_survive_a_killed_cell_and_keep_their_exit_codes(real_kit: Kit) -> None:
    scripts = [
        f"{real_kit.count} for i in 1 2 3 4 5; do echo $i; sleep 0.4; done; exit {code}"
        for code in (0, 3, 4)
    ]
    with cell_of(real_kit, *scripts) as cell:
        assert cell.stdout is not None
        started = 0
        while started < len(scripts):
            line = cell.stdout.readline()
            assert line, "the cell ended by itself"
            started += line.startswith(b"Started")
    real_kit.begin_again()
    uids = sorted(found.uid for found in real_kit.driver.find())
    assert len(uids) == len(scripts)
    for uid in uids:
        launch = real_kit.launch("the command does not matter any more", uid=uid)
        real_kit.driver.adopt(launch)
    assert [real_kit.events.ended(uid).exit_code for uid in uids] == [0, 3, 4]
    assert [real_kit.starts(uid) for uid in uids] == [1, 1, 1]
    assert {real_kit.log(uid) for uid in uids} == {"1\n2\n3\n4\n5\n"}
    until(lambda: not any(found.running for found in real_kit.driver.find()))


@pytest.fixture
def orphan(real_kit: Kit, web: Web) -> str:
    """The uid of an attempt whose cell was killed after its order was taken, before a create."""
    may_answer = threading.Event()

    def hold(request: Request) -> Answer:
        may_answer.wait()
        return Answer()

    web.route = hold
    with cell_of(real_kit, "exit 0", inputs=f"{web.url}/in"):
        until(lambda: web.requests)
    may_answer.set()
    real_kit.begin_again()
    return f"{real_kit.config().installation}-0"


def test_uncreated_attempt_of_a_killed_cell_is_reported_never_created(
    real_kit: Kit, orphan: str
) -> None:
    assert not list(real_kit.driver.find())
    late = real_kit.launch("whatever", uid=orphan)
    real_kit.driver.adopt(replace(late, run=replace(late.run, start_before=0.0)))
    ended = real_kit.events.ended(orphan)
    assert (ended.reason, ended.never_created) == (VANISHED, True)


def test_uncreated_attempt_of_a_killed_cell_is_started_by_its_successor(
    real_kit: Kit, orphan: str
) -> None:
    real_kit.driver.adopt(real_kit.launch(*real_kit.exits(3), uid=orphan))
    ended = real_kit.events.ended(orphan)
    assert (ended.exit_code, ended.failure_kind) == (3, None)


def test_attempt_taken_before_a_reboot_is_not_reported_never_created(
    real_kit: Kit, orphan: str
) -> None:
    (proof,) = real_kit.home.glob("work/*/uncreated")
    proof.write_text("another boot")
    real_kit.driver.adopt(real_kit.launch("whatever", uid=orphan))
    assert not real_kit.events.ended(orphan).never_created


def test_removed_attempt_of_a_killed_cell_is_not_reported_never_created(real_kit: Kit) -> None:
    with cell_of(real_kit, "exec sleep 300") as cell:
        assert cell.stdout is not None
        until(lambda: cell.stdout and cell.stdout.readline().startswith(b"Started"))
    uid = f"{real_kit.config().installation}-0"
    real_kit.remove_outside(uid)
    (real_kit.home / "work" / uid / "order.json").unlink(missing_ok=True)
    real_kit.begin_again()
    real_kit.driver.adopt(real_kit.launch("whatever", uid=uid))
    ended = real_kit.events.ended(uid)
    assert (ended.reason, ended.never_created) == (VANISHED, False)
