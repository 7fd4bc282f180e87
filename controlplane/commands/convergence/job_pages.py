"""Jobs with work take turns: those that fail each time stand in front of nobody for ever.

A look takes a page. What is too much for a page goes on behind it with the next look, and begins
again in front when all had their turn.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from controlplane.commands.convergence.rule import JOBS_PER_TICK
from controlplane.commands.convergence.walks import note_place
from controlplane.queries.convergence.due import list_jobs_with
from controlplane.queries.convergence.repairs import load_way


@dataclass(frozen=True, slots=True)
class JobPage:
    """The jobs whose turn it is, in order. `began`: the id behind which they were looked for.

    `is_all`: no others have that work.
    """

    work: str
    job_ids: list[int]
    began: int
    is_all: bool


def take_turn(work: str, *, now: datetime, but: Collection[int] = ()) -> JobPage:
    """The next jobs with `work`, 500 at most, `but` some; what comes behind them is noted first.

    So it goes on there whatever becomes of these: a rule that fails, a process that is killed.
    """
    began = int(load_way(work).after or 0)
    job_ids = list_jobs_with(work, JOBS_PER_TICK, after=began, but=but)
    left = JOBS_PER_TICK - len(job_ids)
    if began and left:
        front = list_jobs_with(work, left, up_to=began, but=but)
        job_ids, left = job_ids + front, left - len(front)
    turn = JobPage(work, job_ids, began, left > 0)
    reached = 0 if turn.is_all else job_ids[-1]
    if reached != began:
        _note(work, reached, now)
    return turn


def give_back(turn: JobPage, place: int, *, now: datetime) -> None:
    """There was no time for the jobs from `place` on: the next turn begins with them."""
    if not turn.is_all:
        _note(turn.work, turn.job_ids[place - 1] if place else turn.began, now)


def _note(work: str, reached: int, now: datetime) -> None:
    note_place(work, reached=str(reached) if reached else "", now=now)
