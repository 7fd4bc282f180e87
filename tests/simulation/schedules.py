"""Schedules of a simulation: their users, the outages of convergence, and a record of the ticks."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User

from controlplane.commands.schedules.configure import (
    ScheduleFields,
    pause_schedule,
    put_schedule,
    resume_schedule,
)
from controlplane.commands.schedules.fire import run_schedule
from controlplane.commands.tenancy.accounts import create_user
from controlplane.domain.errors import Conflict
from controlplane.domain.roles import Role
from controlplane.domain.schedules.firing import CatchUp, Overlap
from controlplane.models import Project
from controlplane.queries.schedules import find_schedule
from controlplane.queries.sql import rows
from tests.harness.members import admit
from tests.simulation.firing_model import Firing, JobTimes, Period, Record, check_record
from tests.simulation.jobs import Submitted, group_of, job_of
from tests.simulation.local_times import BEGIN, choose_change, draw_calendars
from tests.simulation.submitters import killed_after
from tests.simulation.timeline import Killed

if TYPE_CHECKING:
    from tests.simulation.world import World

OWNER = "planner"
# Statements of a call, and of a page of schedules that is fired: it dies at one of them, or lives.
_CALL_STATEMENTS = 25
_FIRING_STATEMENTS = 60
_STATE = """
SELECT finished_at FROM controlplane_tickstate WHERE name = 'convergence'
"""
_FIRINGS = """
SELECT s.name, f.at, f.outcome, f.fired_at, f.job_id FROM controlplane_schedulefiring f
JOIN controlplane_schedule s ON s.id = f.schedule_id ORDER BY f.id
"""
_JOBS = """
SELECT labels->>'schedule', guid, id, created_at, finished_at, ending_as IS NOT NULL
FROM controlplane_job WHERE labels ? 'schedule' AND deleted_at IS NULL ORDER BY id
"""


def choose_schedules(seed: int) -> bool:
    """Return whether the seed has schedules, if it has nothing else (`extras.has_schedules`)."""
    return Random(f"schedules of {seed}").random() < 0.08


def choose_begin(seed: int) -> float:
    """Return when the simulation begins: with schedules, maybe near a change of clocks."""
    return choose_change(seed)[0] if choose_schedules(seed) else BEGIN


@dataclass(eq=False)
class Planned:
    """A schedule with the periods in which it fired."""

    name: str
    fields: ScheduleFields
    record: Record
    is_paused: bool = False


class Schedules:
    """The schedules of one simulation, and what their users and its convergence did."""

    def __init__(self, world: "World", rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._inactive: list[tuple[datetime, datetime | None]] = []
        self._planned: dict[str, Planned] = {}
        begin, change = choose_change(world.seed)
        self._calendars = draw_calendars(Random(f"calendars of {world.seed}"), begin, change)
        self._until = rng.uniform(240.0, 400.0)
        self._is_over = False
        self.wrong: list[str] = []
        self.owner: User

    def plan(self) -> None:
        """Draw the schedules, the outages and the interventions."""
        world, rng = self._world, self._rng
        self.owner, _ = create_user(name=OWNER, password=None, is_operator=False)
        admit(self.owner, Role.SUBMITTER)
        world.is_peaceful = False
        for number, overlap in enumerate([*rng.sample([*Overlap], 4), rng.choice([*Overlap])]):
            self._plan_one(f"schedule-{number}", overlap)
        world.control.convergence.on_tick = lambda: world.timeline.after(0.0, self._observe)
        minute = 60.0 - world.timeline.now % 60.0
        for number in range(int(self._until // 60)):
            if rng.random() < 0.5:
                world.timeline.after(minute + 60.0 * number - 0.2, self._doom)
        if rng.random() < 0.4:
            begin = rng.uniform(30.0, self._until - 60.0)
            world.timeline.after(begin, partial(self._activate, False))
            world.timeline.after(begin + rng.uniform(30.0, 150.0), partial(self._activate, True))
        world.timeline.after(self._until, self._end)

    def find(self, guid: str) -> Submitted | None:
        """Return the job of an instant; None if the guid is not of a schedule."""
        found = self._planned.get(guid.partition("/")[0])
        return Submitted(0.0, dict(found.fields.job)) if found is not None else None

    def what_is_left(self) -> list[str]:
        """Return the schedules that fire, in words, and their queues."""
        left = [] if self._is_over else ["schedules fire"]
        return left + [
            f"an instant of {name} waits"
            for name, _, outcome, *_ in rows(_FIRINGS)
            if outcome == "waiting"
        ]

    # ------------------------------------------------------------------ inside

    def _plan_one(self, name: str, overlap: Overlap) -> None:
        rng, after = self._rng, self._world.timeline.after
        (cron, zone), minutes = rng.choice(list(self._calendars.items()))
        shortest, longest = rng.choice([(1.0, 5.0), (1.0, 40.0), (1.0, 100.0)])
        if overlap is Overlap.REPLACE:
            # A job that ends before the next instant is never replaced.
            shortest, longest = 50.0, 150.0
        seconds = rng.uniform(shortest, longest)
        group = group_of(rng, "main", ["sleep", f"{seconds:.2f}"], replicas=1)
        group["resources"] = {"cpu": 0.05, "memory": "6Mi"}
        catch_up = rng.choice([*CatchUp])
        fields = ScheduleFields(cron, job_of(name, [group]), zone, catch_up, overlap)
        record = Record(name, str(catch_up), str(overlap), minutes)
        item = self._planned[name] = Planned(name, fields, record)
        after(rng.uniform(0.5, 20.0), partial(self._put, item))
        if rng.random() < 0.3:
            begin = rng.uniform(30.0, self._until - 60.0)
            after(begin, partial(self._switch, item, True))
            after(begin + rng.uniform(20.0, 150.0), partial(self._switch, item, False))
        if rng.random() < 0.2:
            after(rng.uniform(30.0, self._until), partial(self._run, item))

    def _put(self, item: Planned) -> None:
        project_id = Project.objects.get().pk
        put = partial(put_schedule, project_id=project_id, name=item.name, wanted=item.fields)
        self._call(partial(put, owner=self.owner), f"{item.name} is written: {item.fields}")
        item.record.periods.append(Period(self._now()))

    def _switch(self, item: Planned, paused: bool) -> None:
        if self._is_over or item.is_paused is paused:
            return
        switch = pause_schedule if paused else resume_schedule
        number = find_schedule(Project.objects.get().pk, item.name).pk
        call = partial(switch, schedule_id=number, reason="audit", actor=OWNER)
        self._call(call, f"{item.name} is {'paused' if paused else 'resumed'}")
        item.is_paused = paused
        if paused:
            item.record.periods[-1].end = self._now()
        else:
            item.record.periods.append(Period(self._now()))

    def _run(self, item: Planned) -> None:
        if self._is_over:
            return
        schedule = find_schedule(Project.objects.get().pk, item.name)
        item.record.manual.add(self._now())
        try:
            run_schedule(schedule, actor=OWNER, now=self._now())
        except Conflict as error:
            self._world.note(f"{item.name} is not run: {error}")

    def _end(self) -> None:
        """Pause all schedules; instants in queues start when resumed, so those go on."""
        for item in self._planned.values():
            if item.fields.overlap is Overlap.QUEUE:
                # Its next instant is months away.
                fields = ScheduleFields(
                    "0 0 1 1 *", item.fields.job, "UTC", item.fields.catch_up, Overlap.QUEUE
                )
                project_id = Project.objects.get().pk
                put = partial(put_schedule, project_id=project_id, name=item.name, wanted=fields)
                self._call(partial(put, owner=self.owner), f"{item.name} is written again")
                if not item.is_paused:
                    item.record.periods[-1].end = self._now()
            else:
                self._switch(item, True)
        self._activate(True)
        self._is_over = True

    def _doom(self) -> None:
        """Convergence dies in its next ticks, maybe while it fires, and stays away."""
        part = self._world.control.convergence
        if self._is_over or not part.can_work:
            return
        part.restart_seconds = self._rng.choice([2.0, 50.0, 65.0, 130.0, 200.0])
        if self._rng.random() < 0.3:
            self._world.note(f"convergence is away for {part.restart_seconds:.0f} s")
            part.die()
        else:
            part.doom_in_firing = self._rng.randrange(_FIRING_STATEMENTS)

    def _activate(self, is_active: bool) -> None:
        if self._is_over:
            return
        User.objects.filter(pk=self.owner.pk).update(is_active=is_active)
        if not is_active:
            self._inactive.append((self._now(), None))
        elif self._inactive and self._inactive[-1][1] is None:
            self._inactive[-1] = (self._inactive[-1][0], self._now())
        self._world.note(f"{OWNER} is {'active' if is_active else 'deactivated'}")

    def _call(self, action: Callable[..., Any], text: str) -> None:
        """Call until the call lives."""
        while True:
            dies = self._rng.random() < 0.2
            killed = killed_after(self._rng.randrange(_CALL_STATEMENTS)) if dies else nullcontext()
            try:
                with killed:
                    action(now=self._now())
            except Killed:
                self._world.note(f"a call dies: {text}")
                continue
            self._world.note(text)
            return

    def _now(self) -> datetime:
        return self._world.timeline.datetime()

    def _observe(self) -> None:
        """Read what a tick, which may have been killed, left."""
        now = self._now()
        is_whole = rows(_STATE) == [(now,)]
        jobs: dict[str, dict[str, JobTimes]] = {}
        for name, guid, number, made, finished, is_ending in rows(_JOBS):
            times = JobTimes(number, made, finished, is_ending)
            jobs.setdefault(name, {})[guid] = times
        firings: dict[str, list[Firing]] = {}
        for name, at, outcome, fired_at, job_id in rows(_FIRINGS):
            firings.setdefault(name, []).append(Firing(at, outcome, fired_at, job_id))
        is_active = not self._inactive or self._inactive[-1][1] is not None
        for name, item in self._planned.items():
            if not item.record.periods:
                continue
            found = check_record(
                item.record,
                firings.get(name, []),
                jobs.get(name, {}),
                now=now,
                is_whole=is_whole,
                is_active=is_active,
            )
            self.wrong += [f"{name} at {now}: {text}" for text in found]
