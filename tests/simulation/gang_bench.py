"""Volcano's gang bench, with more going wrong: many gangs that do not all fit at once.

Members fail or are killed and cells die, and still no gang may begin anything below its minimum.
"""

from random import Random

from django.contrib.auth.models import User

from controlplane.contract.states import TaskState as S
from tests.simulation.bus import MessageFaults
from tests.simulation.faults import Faults, Mixture, crash_machine, kill_cell_now, kill_container
from tests.simulation.jobs import Submitted, job_of
from tests.simulation.running import Outcome, run_world
from tests.simulation.world import World

# Volcano: 100 nodes of 32 cores, 10 gangs of 100.
CELLS, CORES, GANGS, MEMBERS = 100, 32, 10, 100
# 800 of the 1,000 members fit at once.
CORES_OF_MEMBER = 4
FAULTS = 12


class GangBench(World):
    """100 cells and 10 gangs of 100 members, all of which must run at once."""

    options = " --gangs"

    def furnish(self, owners: dict[str, User]) -> list[Submitted]:
        """The machines and the gangs."""
        for number in range(CELLS):
            name = f"cell-{number:03}"
            machine = self.add_machine(name, name, cpu=1000 * CORES)
            self.timeline.after(self.rng.uniform(0.0, 3.0), machine.start)
        return [_gang(self.rng, number) for number in range(GANGS)]


def _gang(rng: Random, number: int) -> Submitted:
    """All of it must run at once; of every third gang the first attempts fail."""
    words = ["sleep", f"{rng.uniform(15.0, 25.0):.2f}"]
    retries = {"preemption": 100}
    if number % 3 == 2:
        words += ["fail-first", "1"]
        retries["failure"] = 100
    group = {
        "name": "main",
        "replicas": MEMBERS,
        "image": "simulated:1",
        "command": words,
        "resources": {"cpu": CORES_OF_MEMBER, "memory": "16Mi"},
    }
    body = job_of(f"gang-{number}", [group], coscheduled=True, retries=retries)
    job = Submitted(0.0, body, frozenset({S.SUCCEEDED}))
    job.at = rng.uniform(3.0, 10.0)
    return job


def run_bench(seed: int) -> Outcome:
    """Simulate it; machines crash, cell processes and containers are killed."""
    kinds = (crash_machine, kill_cell_now, kill_container)
    world = GangBench(seed)
    mixture = Mixture(kinds, FAULTS, MessageFaults(), is_own=False)
    return run_world(world, lambda: Faults(world, mixture))
