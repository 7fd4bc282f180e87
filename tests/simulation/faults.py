"""What goes wrong in a simulation, and what operators do; each seed draws its own mixture."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from controlplane import clock
from controlplane.commands.attempts.release import release_attempt
from controlplane.commands.cells.operate import cordon_cell, drain_cell, uncordon_cell
from controlplane.commands.tenancy.pools import confirm_loss
from controlplane.domain.convergence.lost_cells import HELD
from controlplane.domain.errors import Conflict, NotFound
from controlplane.queries.sql import rows
from tests.simulation import contests, families
from tests.simulation.bus import MessageFaults
from tests.simulation.control import PARTS, TickPart
from tests.simulation.hostile import push_forgeries
from tests.simulation.machines import KILL_POINTS, Machine
from tests.simulation.world import World

Fault = Callable[["Faults"], None]
OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Mixture:
    """Which faults a seed has. `is_own`: only of the control plane, no message among them."""

    kinds: tuple[Fault, ...]
    count: int
    messages: MessageFaults
    is_own: bool


def draw_mixture(seed: int) -> Mixture:
    """The mixture of `seed`, known before it is simulated."""
    rng = Random(f"faults of {seed}")
    count = rng.choice([0, 3, 8, 16])
    kinds = tuple(rng.sample(FAULTS, rng.randint(1, 6)))
    if contests.choose_contests(seed) and rng.random() < 0.4:
        return Mixture(kinds, 0, MessageFaults(), is_own=True)
    if rng.random() < 0.15:
        return Mixture(OWN_FAULTS, count, MessageFaults(), is_own=True)
    if families.exclusive in families.choose_families(seed):
        # What must not run twice is put to the test: its cells are cut off for long.
        kinds, count = (*kinds, cut_off, cut_off), max(count, 8)
    if rng.random() < 0.3:
        return Mixture(kinds, count, MessageFaults(), is_own=False)
    messages = MessageFaults(
        drop=rng.choice([0.0, 0.02, 0.1, 0.4]),
        duplicate=rng.choice([0.0, 0.05, 0.3]),
        delay=rng.choice([0.0, 0.05, 0.3]),
        delay_seconds=rng.choice([1.0, 10.0, 60.0]),
    )
    return Mixture(kinds, count, messages, is_own=False)


class Faults:
    """The faults of one seed."""

    def __init__(self, world: World, mixture: Mixture | None = None) -> None:
        self.world = world
        self.mixture = mixture or draw_mixture(world.seed)
        self.rng = world.rng
        self.is_over = False
        self.until = self.rng.uniform(40.0, 130.0)
        self._duplicates: list[Machine] = []

    def plan(self) -> None:
        """Draw and plan them."""
        rng, world = self.rng, self.world
        mixture = self.mixture
        world.are_cells_disturbed = not mixture.is_own
        world.is_peaceful = not mixture.count and mixture.messages == MessageFaults()
        world.bus.faults = mixture.messages
        self.note(f"messages: {mixture.messages}")
        for _ in range(mixture.count):
            kind = rng.choice(mixture.kinds)
            when = rng.uniform(3.0, self.until)
            world.timeline.after(when, lambda kind=kind: self._happen(kind))
        if rng.random() < 0.3:
            world.bus.on_push = self._interleave
            for part in world.control.parts.values():
                part.on_gap = self._interleave

    def heal(self) -> None:
        """Everything works again, and operators put all cells back to work."""
        self.is_over = True
        world = self.world
        world.bus.faults = MessageFaults()
        world.bus.is_down = False
        world.bus.on_push = lambda: None
        world.submitters.do_calls_die = False
        if world.callbacks is not None:
            world.callbacks.doom = None
            world.callbacks.is_receiver_well = True
            world.callbacks.resume()
        if world.one_offs is not None:
            world.one_offs.do_calls_die = False
        for duplicate in self._duplicates:
            duplicate.retire()
        for machine in world.machines:
            machine.doom = ""
            machine.bring_engine_back()
            machine.join()
            if machine not in self._duplicates:
                machine.resume()
                machine.start()
        for part in world.control.parts.values():
            part.doom = None
            part.on_gap = lambda: None
            part.resume()
        for name, state in rows("SELECT name, ordered_state FROM controlplane_cell ORDER BY name"):
            if state != "READY":
                uncordon_cell(name=name, actor=OPERATOR, now=clock.now())
        world.timeline.every(60.0, self._release_as_operator, first=120.0)
        world.timeline.every(60.0, partial(confirm_losses, world), first=90.0)

    # ------------------------------------------------------------------ inside

    def _happen(self, kind: Fault) -> None:
        if not self.is_over:
            kind(self)

    def _release_as_operator(self) -> None:
        """Release what is strictly exclusive and unknown to its cell, as operators do."""
        world = self.world
        living = {seen.uid for seen in world.witness.all() if seen.is_living}
        held = rows(
            "SELECT substr(subject, 9) FROM controlplane_alert"
            " WHERE kind = %s AND cleared_at IS NULL ORDER BY id",
            [HELD],
        )
        for (uid,) in held:
            if uid in living:
                continue
            world.note(f"attempt {uid} is released by hand")
            now = world.timeline.datetime()
            with contextlib.suppress(Conflict, NotFound):
                release_attempt(uid=UUID(uid), reason="gone", actor=OPERATOR, now=now)

    def _interleave(self) -> None:
        if self.rng.random() < 0.05:
            self.world.control.interleave()

    def note(self, text: str) -> None:
        self.world.note(f"fault: {text}")

    def later(self, shortest: float, longest: float, action: Callable[[], None]) -> None:
        """Do `action` after a while, unless everything is healed by then."""
        seconds = self.rng.uniform(shortest, longest)
        self.world.timeline.after(seconds, lambda: None if self.is_over else action())

    def machine(self) -> Machine:
        return self.rng.choice(self.world.machines)

    def back_later(self, machine: Machine) -> None:
        """Let its supervisor start it again, or nothing before all is healed."""
        if self.rng.random() < 0.85:
            self.later(0.2, self.rng.choice([3.0, 60.0]), machine.start)


def confirm_losses(world: World) -> None:
    """Confirm, as an operator, the loss of silent cells: none returns in its incarnation."""
    held = rows("SELECT name FROM controlplane_pool WHERE loss_held_at IS NOT NULL ORDER BY name")
    for (name,) in held:
        world.note(f"the loss of cells in pool {name} is confirmed")
        try:
            confirm_loss(name=name, actor=OPERATOR, now=world.timeline.datetime())
        except Conflict:
            world.note("it is not held any more")


def kill_cell(faults: Faults) -> None:
    machine = faults.machine()
    machine.on_killed = lambda: faults.back_later(machine)
    machine.doom = faults.rng.choice([*KILL_POINTS, "tear"])
    faults.note(f"{machine.label} will be killed ({machine.doom})")


def kill_cell_now(faults: Faults) -> None:
    machine = faults.machine()
    machine.kill()
    faults.back_later(machine)


def restart_cell(faults: Faults) -> None:
    machine = faults.machine()
    machine.leave()
    faults.back_later(machine)


def crash_machine(faults: Faults) -> None:
    machine = faults.machine()
    faults.world.harmed |= machine.engine.lives.keys()
    machine.crash()
    faults.back_later(machine)


def pause_cell(faults: Faults) -> None:
    machine = faults.machine()
    faults.note(f"{machine.label} is stopped")
    machine.pause()
    faults.later(1.0, faults.rng.choice([10.0, 90.0]), machine.resume)


def cut_off(faults: Faults) -> None:
    machine = faults.machine()
    faults.note(f"{machine.label} is cut off")
    machine.cut_off()
    faults.later(1.0, faults.rng.choice([10.0, 60.0, 120.0]), machine.join)


def wipe_journal(faults: Faults) -> None:
    machine = faults.machine()
    faults.world.are_journals_harmed = True
    machine.kill()
    faults.note(f"{machine.label} loses its journal")
    machine.disk.wipe()
    faults.back_later(machine)


def roll_journal_back(faults: Faults) -> None:
    machine = faults.machine()
    faults.world.are_journals_harmed = True
    machine.kill()
    if machine.restore_journal(lambda incarnation: _known_seq(machine.name, incarnation)):
        faults.note(f"{machine.label} gets an older journal")
    faults.back_later(machine)


def _known_seq(name: str, incarnation: str) -> int:
    found = rows(
        """
        SELECT GREATEST(c.register_seq, l.heartbeat_seq, l.acked_seq) FROM controlplane_cell c
        JOIN controlplane_celllease l ON l.cell_id = c.id AND l.incarnation = c.incarnation
        WHERE c.name = %s AND c.incarnation = %s
        """,
        [name, incarnation],
    )
    return int(found[0][0]) if found else 0


def add_duplicate(faults: Faults) -> None:
    if len(faults._duplicates) >= 2:
        return
    of = faults.machine()
    duplicate = faults.world.add_machine(of.name, f"twin of {of.name}", pool=of.config.pool)
    faults._duplicates.append(duplicate)
    duplicate.start()
    faults.later(5.0, 60.0, duplicate.crash)


def lose_engine(faults: Faults) -> None:
    machine = faults.machine()
    faults.note(f"the engine of {machine.label} does not answer")
    machine.is_engine_away = True
    faults.later(1.0, faults.rng.choice([10.0, 120.0]), machine.bring_engine_back)


def kill_container(faults: Faults) -> None:
    machine = faults.machine()
    living = machine.living()
    if living:
        uid = faults.rng.choice(living).launch.uid
        faults.world.harmed.add(uid)
        faults.note(f"container {uid} on {machine.label} is killed from outside")
        if faults.rng.random() < 0.5:
            machine.engine.kill_outside(uid, machine.wall())
        else:
            machine.engine.lose(uid, machine.wall())
        if machine.process is not None:
            machine.process.plan()


def pause_part(faults: Faults) -> None:
    part = faults.world.control.parts[faults.rng.choice(PARTS)]
    faults.note(f"{part.name} is stopped")
    part.is_paused = True
    faults.later(1.0, faults.rng.choice([10.0, 90.0]), part.resume)


def kill_part(faults: Faults) -> None:
    part = faults.world.control.parts[faults.rng.choice(PARTS)]
    part.doom = faults.rng.randrange(40)
    faults.note(f"{part.name} will be killed after {part.doom} statements")


def stall_everything(faults: Faults) -> None:
    faults.note("the whole control plane stalls")
    seconds = faults.rng.uniform(5.0, 90.0)
    for part in faults.world.control.parts.values():
        part.is_paused = True
        faults.later(seconds, seconds + 2.0, part.resume)


def flush_broker(faults: Faults) -> None:
    faults.note("the broker is flushed")
    faults.world.bus.flush()


def lose_broker(faults: Faults) -> None:
    bus = faults.world.bus
    faults.note("the broker is away")
    bus.is_down = True
    if faults.rng.random() < 0.5:
        bus.flush()

    def come_back() -> None:
        faults.world.note("the broker is back")
        bus.is_down = False

    faults.later(1.0, faults.rng.choice([10.0, 60.0]), come_back)


def repeat_messages(faults: Faults) -> None:
    for _ in range(faults.rng.randint(1, 10)):
        queue = faults.world.bus.repeat_an_old_message()
        faults.note(f"an old message comes once more on {queue}")


def forge_messages(faults: Faults) -> None:
    """Push messages that no component of the installation made."""
    count = push_forgeries(faults.world, faults.rng)
    faults.note(f"{count} forged messages are pushed")


def tick_twice(faults: Faults) -> None:
    part = faults.world.control.parts[faults.rng.choice(["placement", "convergence"])]
    assert isinstance(part, TickPart)
    for _ in range(2):
        if part.can_work:
            part.work(lambda: part.tick(False))


def change_cell(faults: Faults) -> None:
    name = faults.machine().name
    command = faults.rng.choice([cordon_cell, drain_cell, uncordon_cell])
    faults.note(f"{command.__name__} {name}")
    try:
        command(name=name, actor=OPERATOR, now=clock.now())
    except Conflict:
        faults.world.note("is refused")


OWN_FAULTS: tuple[Fault, ...] = (pause_part, kill_part, stall_everything, tick_twice)
"""The control plane's own; no cell may be held to account for them."""

FAULTS: tuple[Fault, ...] = (
    kill_cell,
    kill_cell_now,
    restart_cell,
    crash_machine,
    pause_cell,
    cut_off,
    wipe_journal,
    roll_journal_back,
    add_duplicate,
    lose_engine,
    kill_container,
    pause_part,
    kill_part,
    stall_everything,
    flush_broker,
    lose_broker,
    repeat_messages,
    forge_messages,
    forge_messages,
    tick_twice,
    change_cell,
)
