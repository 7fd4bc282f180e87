"""Operators that hold and release jobs and the project, move jobs, and change their bands."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from controlplane.commands.jobs.holds import hold_job, hold_project, release_job, release_project
from controlplane.commands.jobs.move import move_job
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.moves import QueueEnd
from controlplane.domain.roles import Role
from controlplane.domain.state.states import TERMINAL, Band
from controlplane.models import Project
from controlplane.queries.sql import rows
from tests.simulation.submitters import killed_after, load_end
from tests.simulation.timeline import Killed

if TYPE_CHECKING:
    from tests.simulation.world import World

_OPERATOR = "operator"
# Statements of a call: it dies at one of them, or lives.
_MOST_STATEMENTS = 12
_LONGEST_HOLD_SECONDS = 45.0
_BANDS = (Band.PRODUCTION, Band.INTERACTIVE, Band.BATCH)

# A job, or the project.
Subject = int | None


class Interventions:
    """The operators of one simulation and their record of the holds that they have set.

    A hold is in the record from the response to its call until the first call that releases it.
    """

    def __init__(self, world: "World", rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._open: dict[Subject, datetime] = {}
        self._over: list[tuple[Subject, datetime, datetime]] = []
        # The jobs whose band may differ from the one in which they were placed or evicted others.
        self.moved: set[int] = set()
        self.have_begun = False

    def plan(self) -> None:
        """Draw the interventions and their times."""
        for _ in range(self._rng.randint(2, 8)):
            kind = self._rng.choice([self._hold, self._hold, self._hold_project, self._move])
            self._world.timeline.after(self._rng.uniform(1.0, 90.0), kind)

    def check(self) -> Iterator[str]:
        """Find attempts that were made while their job or the project was held."""
        over, self._over = self._over, []
        now = self._world.timeline.datetime()
        periods = [*over, *((subject, since, now) for subject, since in self._open.items())]
        for subject, since, until in periods:
            found = rows(
                """
                SELECT uid, job_id, created_at FROM controlplane_attempt
                WHERE created_at > %s AND created_at < %s
                  AND (%s::bigint IS NULL OR job_id = %s)
                """,
                [since, until, subject, subject],
            )
            for uid, job_id, at in found:
                name = "the project" if subject is None else "the job"
                yield f"attempt {uid} of job {job_id} was made at {at}, but {name} is held"

    def what_is_left(self) -> list[str]:
        """Return the holds that are released later, in words."""
        return [f"a hold of {'the project' if job is None else job}" for job in self._open]

    def check_end(self) -> Iterator[str]:
        """Find holds that are open though all were released."""
        for job_id, project_id in rows(
            "SELECT job_id, project_id FROM controlplane_hold WHERE ended_at IS NULL"
        ):
            yield f"job {job_id} or project {project_id} is still held"
        for (job_id,) in rows("SELECT id FROM controlplane_job WHERE is_held"):
            yield f"job {job_id} is marked as held"

    # ------------------------------------------------------------------ inside

    def _hold(self) -> None:
        if (job_id := self._choose()) is not None:
            hold = partial(hold_job, job_id=job_id, reason="waits", role=Role.OPERATOR)
            release = partial(release_job, job_id=job_id, role=Role.OPERATOR)
            self._hold_for_a_while(job_id, f"job {job_id}", hold, release)

    def _hold_project(self) -> None:
        if self._world.is_healed:
            return
        project_id = Project.objects.get().pk
        hold = partial(hold_project, project_id=project_id, reason="waits", role=Role.OPERATOR)
        release = partial(release_project, project_id=project_id, role=Role.OPERATOR)
        self._hold_for_a_while(None, "the project", hold, release)

    def _hold_for_a_while(
        self, subject: Subject, name: str, hold: Callable[..., None], release: Callable[..., None]
    ) -> None:
        if not self._call(hold, f"{name} is held"):
            return
        self._open.setdefault(subject, self._world.timeline.datetime())
        seconds = self._rng.uniform(0.5, _LONGEST_HOLD_SECONDS)
        self._world.timeline.after(seconds, partial(self._release, subject, name, release))

    def _release(self, subject: Subject, name: str, release: Callable[..., None]) -> None:
        if (since := self._open.pop(subject, None)) is not None:
            self._over.append((subject, since, self._world.timeline.datetime()))
        self._call(release, f"{name} is released")

    def _move(self) -> None:
        if (job_id := self._choose()) is None:
            return
        to = self._rng.choice([None, *QueueEnd])
        band = self._rng.choice(_BANDS) if to is None or self._rng.random() < 0.5 else None
        self.moved.add(job_id)
        move = partial(move_job, job_id=job_id, to=to, band=band, role=Role.OPERATOR)
        self._call(move, f"job {job_id} is moved to {to} of {band}")

    def _choose(self) -> int | None:
        """Choose a job that has not ended."""
        if self._world.is_healed:
            return None
        ids = [job.job_id for job in self._world.jobs if job.job_id is not None]
        open_ids = [
            job_id for job_id in ids if (end := load_end(job_id)) and end.state not in TERMINAL
        ]
        return self._rng.choice(open_ids) if open_ids else None

    def _call(self, action: Callable[..., None], text: str) -> bool:
        """Call until the call lives. Return whether it was carried out."""
        world = self._world
        world.is_peaceful, self.have_begun = False, True
        while True:
            dies = self._rng.random() < 0.2
            try:
                with killed_after(self._rng.randrange(_MOST_STATEMENTS)) if dies else nullcontext():
                    action(actor=_OPERATOR, now=world.timeline.datetime())
            except Killed:
                world.note(f"a call dies: {text}")
                continue
            except (Conflict, NotFound) as error:
                world.note(f"refused: {text}: {error}")
                return False
            world.note(text)
            return True
