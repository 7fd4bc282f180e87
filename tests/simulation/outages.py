"""Outages of the control plane, of its inbox, or of the broker, while two hundred tasks run."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from django.contrib.auth.models import User

from controlplane.contract.states import TaskState as S
from tests.simulation.control import PARTS
from tests.simulation.jobs import Submitted, job_of
from tests.simulation.world import World

CELLS, TASKS = 8, 200
# By then all of them run, and their cells have reported again.
BEGIN_SECONDS = 60.0
SHORT: dict[str, float] = {
    "heartbeat_seconds": 0.5,
    "lease_seconds": 3.0,
    "convergence_interval_seconds": 1.0,
}


@dataclass(frozen=True, slots=True)
class Outage:
    """What is away, for how long. `is_emptied`: the broker comes back with nothing in it."""

    parts: tuple[str, ...] = ()
    seconds: float = 600.0
    is_broker: bool = False
    is_emptied: bool = False
    leases: dict[str, float] = field(default_factory=dict)


OUTAGES: dict[str, Outage] = {
    "control plane for 10 min": Outage(PARTS, 600.0),
    "inbox for 5 min": Outage(("inbox",), 300.0),
    "broker for 5 min": Outage((), 300.0, is_broker=True),
    "broker for 5 min, back empty": Outage((), 300.0, is_broker=True, is_emptied=True),
    "everything for 10 min": Outage(PARTS, 600.0, is_broker=True),
    "control plane for 20 short leases": Outage(PARTS, 60.0, leases=SHORT),
    "inbox for 20 short leases": Outage(("inbox",), 60.0, leases=SHORT),
    "broker for 20 short leases": Outage((), 60.0, is_broker=True, leases=SHORT),
}


class OutageWorld(World):
    """Two hundred tasks on eight cells: some end before the outage is over, some after it.

    `more`: fields of their jobs.
    """

    def __init__(self, seed: int, outage: Outage, *, tasks: int = TASKS, **more: Any) -> None:
        super().__init__(seed)
        self.outage = outage
        self._tasks, self._more = tasks, more

    def draw_profile(self) -> dict[str, float]:
        """The leases that the outage is about."""
        return self.outage.leases

    def furnish(self, owners: dict[str, User]) -> list[Submitted]:
        """Add the machines and the jobs, without cancellations."""
        for number in range(CELLS):
            machine = self.add_machine(f"cell-{number}", f"cell-{number}", cpu=4000)
            self.timeline.after(self.rng.uniform(0.0, 3.0), machine.start)
        seconds = self.outage.seconds
        return [
            self._job("meanwhile", 1.2 * BEGIN_SECONDS, BEGIN_SECONDS + 0.9 * seconds),
            self._job("afterwards", BEGIN_SECONDS + seconds, BEGIN_SECONDS + seconds + 60.0),
        ]

    def _job(self, name: str, earliest: float, latest: float) -> Submitted:
        """Half of the tasks, in ten groups that end at different times; each leaves a result."""
        results = {f"group-{number}": f"{name} {number}" for number in range(10)}
        groups = [
            {**_group(self.rng, group, text, earliest, latest), "replicas": self._tasks // 20}
            for group, text in results.items()
        ]
        body = job_of(name, groups, **self._more)
        return Submitted(0.0, body, frozenset({S.SUCCEEDED}), results=results)


def _group(rng: Random, name: str, result: str, earliest: float, latest: float) -> dict[str, Any]:
    return {
        "name": name,
        "image": "simulated:1",
        "command": ["sleep", f"{rng.uniform(earliest, latest):.2f}", "result", result],
        "resources": {"cpu": 0.1, "memory": "16Mi"},
    }


class OutageFault:
    """The outage of a world: nothing else goes wrong. `running`: containers when it began."""

    def __init__(self, world: OutageWorld) -> None:
        self._world = world
        self.until = BEGIN_SECONDS + world.outage.seconds
        self.running: set[str] = set()

    def plan(self) -> None:
        """It begins after a while."""
        self._world.submitters.do_calls_die = False
        self._world.timeline.after(BEGIN_SECONDS, self._begin)

    def _begin(self) -> None:
        world, outage = self._world, self._world.outage
        self.running = {life.launch.uid for item in world.machines for life in item.living()}
        world.note(f"outage: {outage}")
        for name in outage.parts:
            world.control.parts[name].is_paused = True
        world.bus.is_down = outage.is_broker
        if outage.is_emptied:
            world.bus.flush()

    def heal(self) -> None:
        """What was away is started again, and knows nothing."""
        self._world.bus.is_down = False
        for name in self._world.outage.parts:
            self._world.control.parts[name].die()
