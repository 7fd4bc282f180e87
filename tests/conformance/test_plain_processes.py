"""Tasks that need nothing but a process live without a thread, and all promises hold for them."""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.kit import ProcessKit, until
from tests.conformance.test_death import cell_of
from workers.attempt.events import Launch
from workers.attempt.outcome import STOPPED
from workers.drivers.process.fast_path import MAX_ORDERED

MANY = 3 * MAX_ORDERED


def started(kit: ProcessKit, *command: str, number: int = MANY) -> Sequence[Launch]:
    launches = [kit.launch(*command) for _ in range(number)]
    for launch in launches:
        kit.driver.start(launch)
    return launches


def test_concurrent_processes_end_with_their_exit_codes(process_kit: ProcessKit) -> None:
    launches = [process_kit.launch(*process_kit.exits(n % 7)) for n in range(MANY)]
    for launch in launches:
        process_kit.driver.start(launch)
    codes = [process_kit.events.ended(launch.uid).exit_code for launch in launches]
    assert codes == [n % 7 for n in range(MANY)]
    assert {process_kit.starts(launch.uid) for launch in launches} == {1}


def test_running_processes_use_no_additional_threads(process_kit: ProcessKit) -> None:
    first = started(process_kit, "sleep", "300", number=1)[0]
    process_kit.events.started(first.uid)
    threads = threading.active_count()
    launches = started(process_kit, "sleep", "300", number=30)
    for launch in launches:
        process_kit.events.started(launch.uid)
    assert threading.active_count() <= threads


def test_spawner_killed_during_requests_starts_nothing_twice(
    process_kit: ProcessKit,
) -> None:
    first = started(process_kit, "true", number=1)[0]
    process_kit.events.ended(first.uid)
    launches = started(process_kit, *process_kit.exits(0))
    process_kit.events.ended(launches[MAX_ORDERED // 2].uid)
    os.kill(process_kit.spawner(), signal.SIGKILL)
    for launch in launches:
        process_kit.events.ended(launch.uid)
        assert process_kit.starts(launch.uid) <= 1


def test_processes_started_by_a_killed_cell_are_all_adopted(
    process_kit: ProcessKit,
) -> None:
    scripts = [f"{process_kit.count} exit 5"] * MANY
    with cell_of(process_kit, *scripts) as cell:
        assert cell.stdout is not None
        while not cell.stdout.readline().startswith(b"Ended"):
            pass
    process_kit.begin_again()
    installation = process_kit.config().installation
    uids = [f"{installation}-{number}" for number in range(MANY)]
    for uid in uids:
        process_kit.driver.adopt(process_kit.launch("false", uid=uid))
    for uid in uids:
        ended = process_kit.events.ended(uid)
        # What was never sent to the spawner will not come either.
        assert process_kit.starts(uid) == (0 if ended.exit_code is None else 1)
    assert any(process_kit.events.ended(uid).exit_code == 5 for uid in uids)


def test_processes_stopped_together_leave_nothing(process_kit: ProcessKit) -> None:
    launches = started(process_kit, "sleep", "300")
    for launch in launches:
        process_kit.driver.stop(launch.uid, grace_seconds=0, force=True)
    assert {process_kit.events.ended(launch.uid).reason for launch in launches} == {STOPPED}
    for launch in launches:
        process_kit.driver.remove(launch.uid)
    until(lambda: not list(process_kit.driver.find()))
    until(lambda: not list((process_kit.home / "work").iterdir()))


def test_empty_workspace_is_removed_at_the_end_and_others_on_removal(
    process_kit: ProcessKit,
) -> None:
    work = process_kit.home / "work"
    empty = started(process_kit, "true", number=1)[0]
    process_kit.events.ended(empty.uid)
    assert not (work / empty.uid).exists()
    full = started(process_kit, "touch", "left", number=1)[0]
    process_kit.events.ended(full.uid)
    assert (work / full.uid / "root" / "left").exists()
    process_kit.driver.remove(full.uid)
    until(lambda: not (work / full.uid).exists())


def test_changed_folder_is_not_reused(process_kit: ProcessKit) -> None:
    changes = ("chmod 700 .", "chmod 700 ..", "touch ../left", "mkdir ../other", "rmdir $PWD")
    for change in changes:
        launch = started(process_kit, "sh", "-c", change, number=1)[0]
        assert process_kit.events.ended(launch.uid).exit_code == 0
        seen = started(process_kit, "sh", "-c", "pwd; stat -c %a . ..; ls -A . ..", number=1)[0]
        process_kit.events.ended(seen.uid)
        root = Path(process_kit.log(seen.uid).split()[0])
        assert root == process_kit.home / "work" / seen.uid / "root"
        assert process_kit.log(seen.uid).split()[1:] == ["755", "755", ".:", "..:", "root"]
