"""Pages of jobs with work: jobs take turns, so that jobs that always fail do not block others.

A tick takes one page. The next tick continues after it, and begins at the front after the last one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from controlplane.commands.state.cursors import save_cursor
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.due import list_jobs_with

# Jobs handled by one rule in one tick.
JOBS_PER_TICK = 500


@dataclass(frozen=True, slots=True)
class JobPage:
    """The jobs of one turn, in order. `began`: the id after which the page begins.

    `is_all`: no other jobs have that work.
    """

    work: str
    job_ids: list[int]
    began: int
    is_all: bool


def take_turn(work: str, *, now: datetime, but: Collection[int] = ()) -> JobPage:
    """Save the cursor, then return the next jobs with `work`, at most 500, except `but`.

    The next tick continues after them even if a rule fails or the process is killed.
    """
    began = int(load_cursor(work).after or 0)
    job_ids = list_jobs_with(work, JOBS_PER_TICK, after=began, but=but)
    left = JOBS_PER_TICK - len(job_ids)
    if began and left:
        front = list_jobs_with(work, left, up_to=began, but=but)
        job_ids, left = job_ids + front, left - len(front)
    turn = JobPage(work, job_ids, began, left > 0)
    reached = 0 if turn.is_all else job_ids[-1]
    if reached != began:
        _save(work, reached, now)
    return turn


def give_back(turn: JobPage, place: int, *, now: datetime) -> None:
    """Return the jobs from `place` on, which had no time: the next turn begins with them."""
    if not turn.is_all:
        _save(turn.work, turn.job_ids[place - 1] if place else turn.began, now)


def _save(work: str, reached: int, now: datetime) -> None:
    save_cursor(work, after=str(reached) if reached else "", now=now)
