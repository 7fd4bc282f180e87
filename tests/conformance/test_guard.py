"""The guard as a process: it outlives the cell process, and ends containers in time by itself.

What holds for containers holds for plain processes too. Leases are of half a minute, of which
only the end is waited for.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance.cable import Cable
from tests.conformance.kit import DockerKit, Kit, ProcessKit, until
from workers import clock
from workers.attempt.events import Launch, Permit
from workers.attempt.outcome import STOPPED
from workers.drivers.docker.connection import find_socket
from workers.guard.folder import GuardFolder
from workers.guard.link import ProcessLink
from workers.guard.watchlist import ExclusiveAttempt, Watchlist
from workers.service.serving import _lock_journal

ROOT = Path(__file__).parents[2]
LEASE = 30.0  # of which a twentieth, 1.5 s, is kept for the kill

STARTER = """
import sys
from pathlib import Path
from workers.guard.link import ProcessLink
assert ProcessLink(Path(sys.argv[1]), sys.argv[2]).stand_by()
sys.stdin.read()
"""


class Watch:
    """A cell's line to its guard, and what a test wants to see of both."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.link = ProcessLink(kit.home, kit.name)
        self.folder = GuardFolder(kit.home)
        self.cell_lock = _lock_journal(kit.home / "journal.lock")
        assert self.cell_lock is not None

    def show(self, *launches: Launch, seconds: float, grace: float = 0.0) -> None:
        """Write a list: the lease of all is over in `seconds`."""
        deadline = clock.boot_seconds() + seconds
        watched = {launch.uid: ExclusiveAttempt(deadline, LEASE, grace) for launch in launches}
        number = self.link.read().number + 1
        self.link.write(Watchlist(number, clock.boot_id(), watched))

    def begin(self, *command: str, seconds: float = 3600.0, grace: float = 0.0) -> Launch:
        """Start an exclusive attempt as a cell does; returns when it runs and its traps are set.

        Its lease begins to run out only then.
        """
        assert self.link.stand_by()
        launch = self.kit.launch(*command)
        launch = replace(launch, permit=lambda: self.link.permit(launch.uid))
        self.show(launch, seconds=3600.0)
        self.kit.driver.start(launch)
        self.kit.events.started(launch.uid)
        self.kit.wait_until_ready(launch.uid)
        self.show(launch, seconds=seconds, grace=grace)
        return launch

    def end_cell(self) -> None:
        """Let the cell die: its driver reports nothing more, its lock is free."""
        if self.cell_lock is not None:
            self.kit.begin_again()
            os.close(self.cell_lock)
            self.cell_lock = None

    def deadline(self, launch: Launch) -> float:
        """When the lease is over, in wall seconds."""
        boot = self.link.read().attempts[launch.uid].deadline
        return boot - clock.boot_seconds() + clock.wall_seconds()

    def is_guarded(self) -> bool:
        """Whether a guard lives."""
        lock = self.folder.take_lock()
        if lock is not None:
            os.close(lock)
        return lock is None

    def guards(self) -> list[int]:
        """The processes that guard this home."""
        mark = f"\0workers.guard\0{self.kit.home}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def is_over(self, launch: Launch) -> bool:
        """Whether its process has ended."""
        return not any(f.running and f.uid == launch.uid for f in self.kit.driver.find())

    def close(self) -> None:
        self.show(seconds=0.0)
        self.end_cell()
        self.link.dismiss()
        until(lambda: not self.is_guarded())


@pytest.fixture
def watch(real_kit: Kit) -> Iterator[Watch]:
    watch = Watch(real_kit)
    yield watch
    watch.close()


def test_obedient_attempt_is_stopped_before_lease_expiry(watch: Watch) -> None:
    launch = watch.begin(*watch.kit.obedient(), seconds=8.0, grace=5.0)
    deadline = watch.deadline(launch)
    ended = watch.kit.events.ended(launch.uid)
    assert ended.exit_code == 143
    assert ended.at < deadline
    assert launch.uid in watch.link.status().fenced


def test_attempt_ignoring_the_stop_is_killed_before_lease_expiry(watch: Watch) -> None:
    launch = watch.begin(*watch.kit.deaf(300), seconds=7.0, grace=2.0)
    deadline = watch.deadline(launch)
    ended = watch.kit.events.ended(launch.uid)
    assert ended.exit_code == 137
    assert ended.at < deadline


def test_renewed_lease_keeps_the_attempt_running(watch: Watch) -> None:
    renewed = watch.begin(*watch.kit.obedient(), seconds=6.0)
    watch.show(renewed, seconds=3600.0)
    kept = dict(watch.link.read().attempts)
    # Its lease is over later than that of the other was to be.
    other = watch.begin(*watch.kit.obedient())
    watch.show(other, seconds=6.0)
    attempts = {**watch.link.read().attempts, **kept}
    watch.link.write(Watchlist(watch.link.read().number + 1, clock.boot_id(), attempts))
    watch.kit.events.ended(other.uid)
    assert not watch.is_over(renewed)


def test_guard_outlives_a_killed_cell_ends_its_attempts_and_exits(watch: Watch) -> None:
    launch = watch.begin(*watch.kit.obedient(), seconds=8.0, grace=2.0)
    deadline = watch.deadline(launch)
    watch.end_cell()
    until(lambda: watch.is_over(launch))
    assert clock.wall_seconds() < deadline
    until(lambda: not watch.is_guarded())
    assert launch.uid in watch.link.status().fenced


def test_guard_survives_signals_and_the_death_of_its_starter(watch: Watch) -> None:
    home, driver = str(watch.kit.home), watch.kit.name
    command = [sys.executable, "-c", STARTER, home, driver]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
    ) as starter:
        until(lambda: watch.guards())
        (guard,) = watch.guards()
        launch = watch.begin(*watch.kit.obedient())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) * 100:
            os.kill(guard, number)
        os.killpg(starter.pid, signal.SIGKILL)
    assert os.getsid(guard) == guard
    number = watch.link.read().number
    watch.show(launch, seconds=3600.0)
    until(lambda: watch.link.status().number > number)
    assert watch.guards() == [guard]
    assert not watch.is_over(launch)


def test_only_one_guard_runs_per_cell(watch: Watch) -> None:
    launch = watch.begin(*watch.kit.obedient())
    others = [ProcessLink(watch.kit.home, watch.kit.name) for _ in range(3)]
    assert all(other.stand_by() for other in others)
    assert len(watch.guards()) == 1
    assert not watch.is_over(launch)


def test_successor_of_a_killed_guard_ends_the_fenced_attempt(
    watch: Watch,
) -> None:
    launch = watch.begin(*watch.kit.deaf(300), seconds=5.0, grace=3.0)
    until(lambda: launch.uid in watch.link.status().fenced)
    (guard,) = watch.guards()
    os.kill(guard, signal.SIGKILL)
    until(lambda: not watch.is_guarded())
    # Its lease is renewed too late: the guard has fenced it.
    watch.show(launch, seconds=3600.0)
    watch.link._started_at = float("-inf")
    assert watch.link.stand_by()
    assert watch.kit.events.ended(launch.uid).exit_code == 137
    assert watch.guards() != [guard]


def test_unneeded_guard_exits_when_dismissed(watch: Watch) -> None:
    watch.begin(*watch.kit.obedient())
    watch.link.dismiss()
    assert watch.is_guarded()
    watch.show(seconds=0.0)
    watch.link.dismiss()
    assert not watch.is_guarded()
    assert watch.guards() == []


def test_a_guard_stays_as_long_as_the_cell_lives(watch: Watch) -> None:
    assert watch.link.stand_by()
    (guard,) = until(watch.guards)
    # Twice there is no attempt to watch; by the second time it has checked whether the cell lives.
    for _ in range(2):
        number = watch.link.read().number
        watch.show(seconds=0.0)
        until(lambda number=number: watch.link.status().number > number)  # type: ignore[misc]
    watch.begin(*watch.kit.obedient())
    assert watch.guards() == [guard]


def test_attempt_starts_only_after_the_guard_confirms_watching_it(watch: Watch) -> None:
    launch = watch.kit.launch(*watch.kit.exits(0))
    permits: list[Permit] = []

    def permit() -> Permit:
        permits.append(watch.link.permit(launch.uid))
        if len(permits) == 2:
            watch.link.stand_by()
        return permits[-1]

    watch.show(launch, seconds=3600.0)
    watch.kit.driver.start(replace(launch, permit=permit))
    assert watch.kit.events.ended(launch.uid).exit_code == 0
    assert permits[:2] == [Permit.NOT_YET, Permit.NOT_YET]
    assert permits[-1] is Permit.YES


def test_created_but_fenced_attempt_is_never_started(watch: Watch) -> None:
    assert watch.link.stand_by()
    launch = watch.kit.launch(*watch.kit.obedient())
    answers = iter([Permit.YES])  # to create, and then the cell is stopped before it starts it
    is_fenced = lambda: launch.uid in watch.link.status().fenced  # noqa: E731

    def permit() -> Permit:
        if next(answers, None) is None:
            until(is_fenced)
            until(lambda: not list(watch.kit.driver.find()))
        return Permit.YES

    watch.show(launch, seconds=4.0)
    watch.kit.driver.start(replace(launch, permit=permit))
    ended = watch.kit.events.ended(launch.uid)
    assert ended.started_at is None
    assert not ended.never_created
    assert watch.kit.starts(launch.uid) == 0


def test_stop_ends_an_attempt_waiting_for_its_guard(watch: Watch) -> None:
    launch = replace(watch.kit.launch(*watch.kit.obedient()), permit=lambda: Permit.NOT_YET)
    watch.kit.driver.start(launch)
    watch.kit.driver.stop(launch.uid, grace_seconds=0.0, force=False)
    ended = watch.kit.events.ended(launch.uid)
    assert (ended.reason, ended.never_created) == (STOPPED, True)


@pytest.mark.engine
def test_guard_kills_the_container_of_an_unresponsive_engine(
    docker_kit: DockerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(f"/tmp/cellrun-cable-{uuid.uuid4().hex[:8]}")
    cable = Cable(str(path), find_socket())
    watch = Watch(docker_kit)
    try:
        with monkeypatch.context() as patch:
            # The guard's way to the engine, and not the driver's.
            patch.setenv("DOCKER_HOST", f"unix://{path}")
            assert watch.link.stand_by()
        launch = watch.begin(*docker_kit.deaf(300))
        pid = docker_kit.inspect(launch.uid)["State"]["Pid"]
        (guard,) = watch.guards()
        until(lambda: _has_grip(guard, pid))
        cable.pull()
        watch.show(launch, seconds=4.0)
        deadline = watch.deadline(launch)
        ended = docker_kit.events.ended(launch.uid)
        assert ended.exit_code == 137
        assert ended.at < deadline
    finally:
        cable.plug()
        watch.close()
        cable.close()
        path.unlink()


def _has_grip(guard: int, pid: int) -> bool:
    for path in Path(f"/proc/{guard}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # the guard has closed it meanwhile
            if f"\nPid:\t{pid}\n" in path.read_text():
                return True
    return False


def test_guard_environment_contains_no_secret_of_the_cell(
    process_kit: ProcessKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:hush@nowhere")
    monkeypatch.setenv("CELLRUN_CELL_KEY_FILE", "hush")
    watch = Watch(process_kit)
    assert watch.link.stand_by()
    (guard,) = until(watch.guards)
    assert b"hush" not in Path(f"/proc/{guard}/environ").read_bytes()
    watch.close()
