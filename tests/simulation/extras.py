"""What some simulations have beside jobs and contests: short lives, one-offs, holds, losses."""

from collections.abc import Callable
from functools import partial
from random import Random

from controlplane.commands.tenancy.pools import put_pool
from controlplane.contract.states import TaskState as S
from tests.simulation import callbacks
from tests.simulation.callbacks import Callbacks
from tests.simulation.contests import choose_contests
from tests.simulation.faults import confirm_losses
from tests.simulation.interventions import Interventions
from tests.simulation.jobs import Submitted, group_of, job_of
from tests.simulation.keys import choose_keys, draw_keyed_jobs
from tests.simulation.one_offs import OneOffs
from tests.simulation.schedules import Schedules, choose_schedules
from tests.simulation.world import World

CONFIRM_EVERY_SECONDS = 30.0

Extra = Callable[[World, Random], None]


def choose_extras(seed: int) -> tuple[Extra, ...]:
    """The extras of `seed`, known before it is simulated; of three seeds in four: none."""
    rng = Random(f"extras of {seed}")
    if rng.random() > 0.25:
        return ()
    return tuple(rng.sample(EXTRAS, rng.choice([1, 1, 2, 3])))


def add_extras(world: World) -> None:
    """Those of the world's seed; when its machines and jobs are drawn."""
    chosen = choose_extras(world.seed)
    for extra in chosen:
        extra(world, Random(f"{extra.__name__} of {world.seed}"))
    if has_schedules(world.seed):
        world.schedules = Schedules(world, Random(f"what schedules do in {world.seed}"))
        world.schedules.plan()
        world.submitters.find_scheduled = world.schedules.find
    if has_keys(world.seed):
        world.submitters.add(draw_keyed_jobs(Random(f"jobs with keys of {world.seed}")))
        world.has_keys = True


def has_schedules(seed: int) -> bool:
    """Return whether the seed has schedules; they take minutes, so nothing else is beside them."""
    return choose_schedules(seed) and not choose_extras(seed) and not choose_contests(seed)


def has_keys(seed: int) -> bool:
    """Return whether the seed has jobs with concurrency keys; they contend with no others."""
    return choose_keys(seed) and not has_schedules(seed) and not choose_contests(seed)


def short_lives(world: World, rng: Random) -> None:
    """Jobs are deleted soon after they have settled."""
    for job in world.jobs:
        if rng.random() < 0.8:
            job.body["ttl_seconds_after_finished"] = rng.choice([8, 20, 60])
    world.submitters.add([*_outlived(rng), *_tried_again(rng)])
    world.expires = True


def _outlived(rng: Random) -> list[Submitted]:
    """A parent that has soon ended, and a child that has not when the parent's time is over."""
    parent, child = (_short(rng, f"{role}-of-short-life") for role in ("parent", "child"))
    parent.body["groups"][0]["command"] = ["sleep", "2"]
    child.parent = parent
    child.at = parent.at = rng.uniform(0.5, 20.0)
    return [parent, child]


def _tried_again(rng: Random) -> list[Submitted]:
    """A job that is cancelled, and what is left of it, which takes longer than it is kept."""
    job = _short(rng, "first-of-short-life")
    rest = Submitted(0.0, {"name": "rest-of-short-life", "groups": []}, job.expected)
    rest.retries = job
    job.expected |= {S.KILLED}
    job.cancel_at = rng.uniform(3.0, 20.0)
    return [job, rest]


def _short(rng: Random, name: str) -> Submitted:
    group = group_of(rng, "main", ["sleep", f"{rng.uniform(25.0, 45.0):.2f}"], replicas=1)
    group["resources"] = {"cpu": 0.05, "memory": "6Mi"}
    body = job_of(name, [group], ttl_seconds_after_finished=8)
    return Submitted(0.0, body, frozenset({S.SUCCEEDED, S.KILLED}))


def one_offs(world: World, rng: Random) -> None:
    """One-off tasks, whose clients poll, race for claims, resolve and delete."""
    url = callbacks.URL if tellings in choose_extras(world.seed) else None
    world.one_offs = OneOffs(world.around, world.owners, rng, url=url)
    world.one_offs.plan()
    world.submitters.find_one_off = world.one_offs.find


def tellings(world: World, rng: Random) -> None:
    """Jobs with callbacks; the delivering process is killed, and receivers may refuse."""
    for job in world.jobs:
        if job.retries is None and rng.random() < 0.5:
            job.body["callback"] = {"url": callbacks.URL, "on": rng.choice(["task", "job"])}
    part = world.callbacks = world.control.callbacks = Callbacks(world.around, rng)
    for _ in range(rng.randint(0, 3)):
        world.timeline.after(rng.uniform(3.0, 90.0), partial(_doom, world, part, rng))


def _doom(world: World, part: Callbacks, rng: Random) -> None:
    if not world.is_healed:
        part.doom = rng.randrange(20)
        world.note(f"fault: {part.name} will be killed after {part.doom} statements")


def interventions(world: World, rng: Random) -> None:
    """Operators hold and release jobs and the project, and move jobs in the queue."""
    world.interventions = Interventions(world, rng)
    world.interventions.plan()


def mass_losses(world: World, rng: Random) -> None:
    """More than half of the cells go at once; some pools wait for an operator's word."""
    for number in range(rng.randint(1, 3)):
        name = f"cell-more-{number}"
        machine = world.add_machine(name, name)
        world.timeline.after(rng.uniform(0.0, 3.0), machine.start)
    policy = rng.choice(["hold", "hold", "proceed"])
    put_pool(name="default", changes={"mass_loss": policy})
    for _ in range(rng.randint(1, 2)):
        world.timeline.after(rng.uniform(8.0, 60.0), partial(_lose_many, world, rng))
    if policy == "hold" and rng.random() < 0.5:
        world.timeline.every(CONFIRM_EVERY_SECONDS, partial(confirm_losses, world), first=60.0)


def departures(world: World, rng: Random) -> None:
    """Cells leave in order, with nothing left on them; most come back after a while."""
    for _ in range(rng.randint(1, 4)):
        world.timeline.after(rng.uniform(5.0, 90.0), partial(_let_leave, world, rng))


def _let_leave(world: World, rng: Random) -> None:
    if world.is_healed:
        return
    world.are_cells_disturbed, world.is_peaceful = True, False
    busy = [machine for machine in world.machines if machine.process and machine.living()]
    machine = rng.choice(busy or world.machines)

    def come_back() -> None:
        # A call that still runs when all is healed is started again, like all others.
        if world.is_healed or rng.random() < 0.8:
            world.timeline.after(rng.uniform(5.0, 90.0), machine.start)

    machine.on_left = machine.on_killed = come_back
    machine.leave_for_good()
    if machine in busy and rng.random() < 0.6:  # it does not get through with it
        machine.doom = "act"


def _lose_many(world: World, rng: Random) -> None:
    """Cut off or stopped, for a while that is longer than the lease, or for good."""
    if world.is_healed:
        return
    world.are_cells_disturbed, world.is_peaceful = True, False
    machines = [machine for machine in world.machines if machine.config.pool == "default"]
    chosen = rng.sample(machines, rng.randint(len(machines) // 2 + 1, len(machines)))
    way = rng.choice(["cut off", "killed", "crashed"])
    for machine in chosen:
        world.note(f"fault: {machine.label} is {way}, with others")
        if way == "cut off":
            machine.cut_off()
        elif way == "killed":
            machine.kill()
        else:
            world.harmed |= machine.engine.lives.keys()
            machine.crash()
        # What does not come back by itself does when all is healed.
        back = machine.join if way == "cut off" else machine.start
        if rng.random() < 0.7:
            world.timeline.after(rng.uniform(5.0, 120.0), back)


EXTRAS: tuple[Extra, ...] = (
    short_lives,
    one_offs,
    tellings,
    interventions,
    mass_losses,
    departures,
)
