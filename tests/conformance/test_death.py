"""The cell process is killed with SIGKILL, for real: what it began goes on, and is found again."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conformance.kit import Kit, until

ROOT = Path(__file__).parents[2]

CELL = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from controlplane.contract.orders import GroupSpec, RunAttempt
    from workers.attempt.events import Launch
    from workers.config import CellConfig
    from workers.drivers.registry import make_driver

    driver, home, installation, *scripts = sys.argv[1:]
    config = CellConfig(
        name="cell-1", key=b"k" * 32, home=Path(home), broker_url="", control_url="",
        installation=installation, capacity={}, driver=driver,
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
        )
        run = RunAttempt(f"{installation}-{number}", 1, 11, 0, 1, 0.0)
        made.start(Launch(run, spec, {"CELLRUN_ATTEMPT_UID": run.uid}))
    time.sleep(300)
    """
)


def test_attempts_survive_a_killed_cell_and_end_with_their_own_status(real_kit: Kit) -> None:
    scripts = [
        f"{real_kit.count} for i in 1 2 3 4 5; do echo $i; sleep 0.4; done; exit {code}"
        for code in (0, 3, 4)
    ]
    config = real_kit.config()
    command = [sys.executable, "-c", CELL, real_kit.name, str(real_kit.home), config.installation]
    with subprocess.Popen([*command, *scripts], stdout=subprocess.PIPE, cwd=ROOT) as cell:
        assert cell.stdout is not None
        started = 0
        try:
            while started < len(scripts):
                line = cell.stdout.readline()
                assert line, "the cell ended by itself"
                started += line.startswith(b"Started")
        finally:
            cell.send_signal(signal.SIGKILL)
    real_kit.begin_again()
    uids = sorted(found.uid for found in real_kit.driver.find())
    assert len(uids) == len(scripts)
    for uid in uids:
        launch = real_kit.launch("the command does not matter any more", uid=uid)
        real_kit.driver.adopt(launch)
    assert [real_kit.told.ended(uid).exit_code for uid in uids] == [0, 3, 4]
    assert [real_kit.starts(uid) for uid in uids] == [1, 1, 1]
    assert {real_kit.log(uid) for uid in uids} == {"1\n2\n3\n4\n5\n"}
    until(lambda: not any(found.running for found in real_kit.driver.find()))
