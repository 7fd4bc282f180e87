"""Runs one seed: the same number is the same simulation, step by step."""

import hashlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from controlplane.queries.sql import rows
from tests.simulation.extras import add_extras
from tests.simulation.faults import Faults
from tests.simulation.starts import check_start
from tests.simulation.truths import Violated, check_end, check_step
from tests.simulation.world import World

# Between two checks of all invariants, in virtual seconds, as long as rows change.
CHECK_SECONDS = 1.0
SHOWN_LINES = 60


@dataclass(slots=True)
class Outcome:
    """What became of a seed. `failure`: empty if all was well. `digest`: of the whole course."""

    seed: int
    elapsed: float = 0.0
    failure: str = ""
    trace: list[str] = field(default_factory=list)
    digest: str = ""
    options: str = ""

    def report(self) -> str:
        """For people: what is wrong, what happened before, and how to see it again."""
        shown = "\n".join(self.trace[-SHOWN_LINES:])
        return (
            f"seed {self.seed} fails after {self.elapsed:.3f} virtual seconds\n{shown}\n"
            f"{self.failure}\nagain: python -m tests.simulation {self.seed}{self.options}"
        )


class Trouble(Protocol):
    """What goes wrong in a simulation. `until`: virtual seconds until all is healed."""

    until: float

    def plan(self) -> None:
        """Draw what happens, and when."""

    def heal(self) -> None:
        """Everything works again."""


def run_seed(seed: int) -> Outcome:
    """Simulate `seed`. The test database must be there and open to us; it is emptied."""
    world = World(seed)

    def draw_trouble() -> Trouble:
        add_extras(world)
        return Faults(world)

    return run_world(world, draw_trouble)


def run_world(world: World, draw_trouble: Callable[[], Trouble]) -> Outcome:
    """Simulate `world` with what goes wrong in it, drawn when the world is furnished."""
    outcome = Outcome(world.seed, options=world.options)
    try:
        with world.installed():
            try:
                _simulate(world, draw_trouble())
            finally:
                outcome.digest = _digest()
    except Exception as error:
        text = str(error) if isinstance(error, Violated) else traceback.format_exc(limit=-12)
        outcome.failure = text
    outcome.elapsed = world.timeline.elapsed
    outcome.trace = list(world.trace)
    return outcome


def _simulate(world: World, trouble: Trouble) -> None:
    trouble.plan()
    checked_at = 0.0

    def check() -> None:
        nonlocal checked_at
        if world.dirty and world.timeline.now >= checked_at + CHECK_SECONDS:
            world.dirty = False
            checked_at = world.timeline.now
            check_step(world)

    world.on_step = check
    world.witness.on_begin = lambda seen: world.wrong.extend(check_start(world, seen))
    world.run(healed_at=trouble.until, heal=trouble.heal)
    check_end(world)


def _digest() -> str:
    """Of the history, by task: PostgreSQL may write the rows of one statement in any order."""
    found = rows(
        "SELECT job_id, task_id, attempt_uid::text, to_state, reason, at::text"
        " FROM controlplane_transition ORDER BY at, job_id, task_id, id"
    )
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
