"""A machine with an engine, a disk, a guard, and a cell process that lives, stalls and dies.

Its clocks are wrong, and go too fast or too slow. The guard lives as long as the machine does.

The process does what `workers.service.host.CellHost` does, round by round, with the production
Cell, CellJournal, Reporter, Lease and MemoryDriver; it can be killed at any point of a round.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from tests.simulation.bus import SimulatedBus, body_of
from tests.simulation.stores import Disk
from tests.simulation.timeline import Killed, Timeline
from workers.agent.cell import Cell
from workers.agent.inputs import CellInput, ClockReading, OrderMessage, ScanResult
from workers.agent.reporting import SequenceNumbers
from workers.attempt.events import DriverEvent, FoundContainer, Launch, Permit
from workers.attempt.runtime import EngineAway
from workers.config import CellConfig
from workers.drivers.memory import FakeContainer, MemoryDriver, MemoryEngine
from workers.guard.local import LocalGuardLink
from workers.guard.watchlist import Watchlist
from workers.journal import JournalFile
from workers.service.host import COALESCE_SECONDS

# The shortest step of a machine's loop: clocks are floats, and a loop must get on.
_STEP = 0.001
EXPECTED_SECONDS = 120

# So much may a clock gain or lose.
DRIFT = 0.1

KILL_POINTS = ("take", "tear", "sync", "act", "say")


@dataclass(slots=True)
class Surroundings:
    """What machines share. `note` adds a line to the trace."""

    timeline: Timeline
    bus: SimulatedBus
    rng: Random
    note: Callable[[str], None]


class Machine:
    """One machine. `doom`: the point of a round (KILL_POINTS) at which its process is killed."""

    def __init__(
        self,
        around: Surroundings,
        *,
        name: str,
        label: str,
        key: bytes,
        capacity: dict[str, int],
        pool: str = "default",
    ) -> None:
        self.around = around
        self.name = name
        self.label = label
        self.config = CellConfig(
            name=name,
            key=key,
            home=Path("/nonexistent"),
            broker_url="",
            control_url="",
            installation="simulation",
            capacity=capacity,
            driver="memory",
            pool=pool,
        )
        self.engine = MemoryEngine()
        self.disk = Disk(around.rng)
        # People set clocks wrong; nothing may depend on a cell's wall clock.
        self.rate = around.rng.uniform(1 - DRIFT, 1 + DRIFT)
        self.set_at = around.timeline.now
        self.wall_offset = around.rng.uniform(-30.0, 30.0)
        self.booted_at = around.timeline.now - around.rng.uniform(10.0, 1e6)
        self.boots = 0
        self.guard = self._begin_guard(Watchlist())
        self._guard_due = float("inf")
        self.process: Process | None = None
        self.is_paused = False
        self.is_cut_off = False
        self.is_retired = False
        self.wrong: list[str] = []
        # How often restored journals that no message can expose lack the start of an attempt.
        self.forgotten: Counter[str] = Counter()
        self.doom = ""
        self.is_engine_away = False
        self.on_killed: Callable[[], None] = lambda: None
        self.on_left: Callable[[], None] = lambda: None

    def offer(self, *, labels: Mapping[str, str], more: Mapping[str, int]) -> None:
        """It has these labels, and more than it had; before it is started."""
        capacity = {**self.config.capacity, **more}
        self.config = replace(self.config, labels=labels, capacity=capacity)

    def offer_containers(self) -> None:
        """Register as a cell of containers, of which it prepares only so many at once."""
        self.config = replace(self.config, driver="docker")

    def wall(self) -> float:
        """What the machine's clock shows."""
        elapsed = self.around.timeline.now - self.set_at
        return self.set_at + elapsed * self.rate + self.wall_offset

    def world_time(self, wall: float) -> float:
        """When the machine's clock shows `wall`."""
        return self.set_at + (wall - self.wall_offset - self.set_at) / self.rate

    def boot(self) -> float:
        """Seconds since boot, as the machine counts them."""
        return (self.around.timeline.now - self.booted_at) * self.rate

    def world_time_of_boot(self, boot: float) -> float:
        """When the machine has counted `boot` seconds since it was booted."""
        return self.booted_at + boot / self.rate

    def moment(self) -> ClockReading:
        """Now, by both of its clocks."""
        return ClockReading(self.wall(), self.boot())

    def start(self) -> None:
        """Start the cell process, unless it runs or the machine is retired."""
        if self.process is not None or self.is_retired:
            return
        self.is_paused = False
        self.around.note(f"{self.label} starts")
        try:
            self.process = Process(self)
        except Killed:
            self.process = None
            self.on_killed()
            return
        self.process.plan()

    def kill(self, why: str = "is killed") -> None:
        """kill -9; containers run on."""
        if self.process is not None:
            self.around.note(f"{self.label} {why}")
            self.process.driver.close()
            self.process = None
        self.doom = ""
        self.disk.tears_next = False
        self.is_paused = False

    def leave(self) -> None:
        """End on SIGTERM: the cell sends a goodbye, its containers run on for its successor."""
        if self.process is not None and not self.is_paused:
            self.process.leave()
            self.kill("leaves")

    def leave_for_good(self) -> None:
        """Evacuate on SIGTERM: the cell stops everything, waits, and sends its last goodbye."""
        if self.process is not None and not self.is_paused:
            self.around.note(f"{self.label} evacuates")
            self.process.evacuate()

    def crash(self) -> None:
        """The whole machine goes down: process, containers, and what was not on disk."""
        self.kill("goes down with its machine")
        self.disk.lose_power()
        for uid in list(self.engine.lives):
            self.engine.lose(uid, self.wall())
        self.booted_at = self.around.timeline.now
        self.boots += 1
        self.guard = self._begin_guard(self.guard.read())

    def retire(self) -> None:
        """Shut down for good."""
        self.crash()
        self.is_retired = True

    def restore_journal(self, known_seq: Callable[[str], int]) -> bool:
        """Put an older copy of the journal in place; False if there is none.

        `known_seq`: the newest number that the control plane has of an incarnation. The numbers
        count the journal's entries: without one behind the copy's entries, the copy does not differ
        from the newest journal, and what was started since is started again if it is ordered again.
        """
        if not self.disk.roll_back():
            return False
        memory = JournalFile(self.disk).journal(self.name).memory
        first_behind = SequenceNumbers(lambda: memory.written + 1).draw()
        if known_seq(memory.incarnation) < first_behind:
            self.forgotten.update(
                uid
                for uid in self.engine.starts
                if uid not in memory.attempts and uid not in memory.done
            )
        return True

    def _begin_guard(self, watchlist: Watchlist) -> LocalGuardLink:
        return LocalGuardLink(
            self.engine,
            wall=self.wall,
            boot=self.boot,
            boot_id=f"{self.boots}",
            watchlist=watchlist,
        )

    def plan_guard(self) -> None:
        """Let the guard do what is due when it is."""
        due = max(self.world_time_of_boot(self.guard.wakes_at), self.around.timeline.now) + _STEP
        if due < self._guard_due:
            self._guard_due = due
            self.around.timeline.at(due, lambda: self._let_guard_work(due))

    def _let_guard_work(self, due: float) -> None:
        if due != self._guard_due:
            return
        self._guard_due = float("inf")
        fenced = len(self.guard.status().fenced)
        self.guard.tick()
        if len(self.guard.status().fenced) > fenced:
            self.around.note(f"the guard of {self.label} strikes")
        if fenced and self.process is not None:
            self.process.plan()
        self.plan_guard()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = self.process is not None

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        if self.process is not None:
            self.process.plan()

    def cut_off(self) -> None:
        """Cut the machine off: its messages are lost, and it receives none."""
        self.is_cut_off = True

    def join(self) -> None:
        """Reconnect the machine, which finds what was sent to it meanwhile."""
        self.is_cut_off = False
        if self.process is not None:
            self.process.plan()

    def bring_engine_back(self) -> None:
        """Bring the engine back, which does the deferred calls."""
        self.is_engine_away = False
        if self.process is not None:
            self.process.plan()

    def arrived(self, queue: str) -> None:
        """A message lies in `queue`."""
        if self.process is not None and self.process.queue == queue:
            self.process.plan()

    def living(self) -> list[FakeContainer]:
        """The containers whose program runs."""
        now = self.wall()
        return [life for life in self.engine.lives.values() if life.starts_at <= now < life.ends_at]


class Process:
    """One run of the cell process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._around = machine.around
        self._incoming: list[CellInput] = []
        self._journals = JournalFile(machine.disk)
        self.driver = MemoryDriver(self._receive, clock=machine.wall, engine=machine.engine)
        self._fragile = _Fragile(self.driver, machine)
        rng = machine.around.rng
        self.cell = Cell(
            machine.config,
            self._journals.journal(machine.name),
            self._fragile,
            guard=machine.guard,
            draw_incarnation=lambda: f"{rng.getrandbits(64):016x}",
        )
        self.cell.start(machine.moment())
        self._journals.sync()
        self.incarnation = self.cell.incarnation
        self.queue = self.cell.queue
        self._planned = float("inf")
        self._has_polled = False
        self._first_news: float | None = None
        self._is_evacuating = False

    def _receive(self, event: DriverEvent) -> None:
        self._incoming.append(event)

    def plan(self, when: float | None = None) -> None:
        """Do a round at `when`, or at once."""
        when = self._around.timeline.now + _STEP if when is None else when
        if when < self._planned:
            self._planned = when
            self._around.timeline.at(when, lambda: self._due(when))

    def _due(self, when: float) -> None:
        if self.machine.process is not self or when != self._planned:
            return
        self._planned = float("inf")
        if self.machine.is_paused:
            return
        try:
            self._round()
        except Killed:
            self.machine.kill(f"is killed ({self.machine.doom or 'torn'})")
            self.machine.on_killed()
            return
        self.plan(self._next())

    def _round(self) -> None:
        """As `workers.service.host.CellHost._round`."""
        machine, cell = self.machine, self.cell
        now = machine.moment()
        if not machine.is_engine_away:
            self._fragile.catch_up()
            self.driver.advance(now.wall)
            self._scan_at_first()
        batch, self._incoming = self._incoming, []
        for message in () if machine.is_cut_off else self._around.bus.take(self.queue):
            ((text,), _, _) = body_of(message)
            batch.append(OrderMessage(text))
        for item in batch:
            cell.note(item, now)
        cell.tick(now)
        if batch:
            self._die_at("take")
            machine.disk.tears_next = machine.doom == "tear"
        self._journals.sync()
        machine.disk.tears_next = False
        if batch:
            self._die_at("sync")
        cell.act(flush=self._is_flush_due())
        messages = cell.take_outgoing()
        machine.plan_guard()
        if messages:
            self._die_at("say")
            self._push(messages)
        cell.ended.clear()
        if self._is_evacuating and cell.is_empty:
            machine.leave()
            machine.on_left()
            return
        if cell.incarnation != self.incarnation:
            # The process starts anew by exec: its queue has another name from now on.
            machine.kill("begins a new incarnation")
            machine.start()

    def _scan_at_first(self) -> None:
        """Scan once, as the first scan of `workers.agent.reaper.Reaper`."""
        if not self._has_polled:
            self._has_polled = True
            found = tuple(item.uid for item in self._fragile.find())
            self._incoming.insert(0, ScanResult(found, ()))

    def evacuate(self) -> None:
        """As `workers.service.host.CellHost._evacuate`, round by round."""
        self._is_evacuating = True
        self.cell.evacuate()
        self.plan()

    def leave(self) -> None:
        """As `workers.service.host.CellHost._leave`; when it evacuates, nothing is left by then."""
        self.cell.leave(self.machine.moment(), expected_seconds=EXPECTED_SECONDS)
        self._journals.sync()
        self.cell.act()
        self._push(self.cell.take_outgoing())

    def _push(self, messages: list[tuple[str, str]]) -> None:
        if not self.machine.is_cut_off:
            self._around.bus.push_from_cell(messages)

    def _die_at(self, point: str) -> None:
        if self.machine.doom == point:
            raise Killed

    def _is_flush_due(self) -> bool:
        if not self.cell.reporter.has_news:
            self._first_news = None
            return False
        now = self._around.timeline.now
        if self._first_news is None:
            self._first_news = now
        if now - self._first_news < COALESCE_SECONDS:
            return False
        self._first_news = None
        return True

    def _next(self) -> float:
        timeline, machine = self._around.timeline, self.machine
        moments = [machine.world_time_of_boot(self.cell.wakes_at)]
        due = self.driver.next_due()
        if due is not None and not machine.is_engine_away:
            moments.append(machine.world_time(due))
        if self._first_news is not None:
            moments.append(self._first_news + COALESCE_SECONDS)
        waiting = 0 if machine.is_cut_off else self._around.bus.count(self.queue)
        if self._incoming or waiting:
            moments.append(timeline.now)
        return max(min(moments), timeline.now) + _STEP


class _Fragile:
    """The driver, in a process that may be killed before or after any call of it.

    While the engine is away no call and no event happens; afterwards all of them do.
    """

    name = "memory"

    def __init__(self, driver: MemoryDriver, machine: Machine) -> None:
        self._driver = driver
        self._machine = machine
        self._deferred: list[Callable[[], None]] = []

    def _call(self, action: Callable[[], None]) -> None:
        doomed = self._machine.doom == "act"
        if doomed and self._machine.around.rng.random() < 0.5:
            raise Killed
        if self._machine.is_engine_away:
            self._deferred.append(action)
        else:
            action()
        if doomed:
            raise Killed

    def catch_up(self) -> None:
        """Do the calls that were deferred while the engine was away."""
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            action()

    def start(self, launch: Launch) -> None:
        self._call(lambda: self._start(launch))

    def _start(self, launch: Launch) -> None:
        machine = self._machine
        is_known = launch.uid in machine.engine.lives
        self._driver.start(launch)
        if launch.permit() is Permit.NEVER and launch.uid in machine.engine.lives and not is_known:
            machine.wrong.append(f"attempt {launch.uid} began on {machine.label} without a lease")

    def adopt(self, launch: Launch) -> None:
        self._call(lambda: self._driver.adopt(launch))

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        self._call(lambda: self._driver.stop(uid, grace_seconds=grace_seconds, force=force))

    def find(self) -> Iterable[FoundContainer]:
        if self._machine.is_engine_away:
            raise EngineAway("the engine does not answer")
        return self._driver.find()

    def remove(self, uid: str) -> None:
        self._call(lambda: self._driver.remove(uid))

    def close(self) -> None:
        self._driver.close()
