"""The model's convergence: its rules, one after the other, each over all that it concerns."""

from collections.abc import Callable
from datetime import datetime, timedelta

from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.transitions import Event
from tests.integration.loop.model import Attempt, Job, Jobs, Task
from tests.properties.restatement import ACTIVE

PULL, CREATE = timedelta(seconds=1800), timedelta(seconds=300)
GRACE, MARGIN = timedelta(seconds=30), timedelta(seconds=10)


class Model(Jobs):
    """Jobs, and the tick that ends what is lost, late or overdue."""

    def tick(
        self, *, is_deaf: bool, covered_at: datetime | None, is_lost: Callable[[Attempt], bool]
    ) -> None:
        """One tick of convergence, rule by rule. `is_lost`: of an attempt, once cells were lost."""
        rules = self._rules(covered_at, is_lost)
        for holds, act in rules.values() if not is_deaf else ():
            hit = [task for task in self.tasks() if holds(task)]
            for task in hit:
                act(task)
            self.follow(task.group.job for task in hit)
        self._cascade()
        for job in self.living():
            if job.is_deleted and job.is_settled and not is_deaf:
                job.is_gone = True
                for other in self.jobs.values():
                    other.parent = None if other.parent == job.id else other.parent
                    other.retry_of = None if other.retry_of == job.id else other.retry_of

    def _rules(
        self, covered_at: datetime | None, is_lost: Callable[[Attempt], bool]
    ) -> dict[str, tuple[Callable[[Task], bool], Callable[[Task], object]]]:
        def state_of(task: Task) -> S | None:
            return task.held.state if task.held else None

        def is_overrun(task: Task) -> bool:
            attempt, limit = task.held, task.group.timeout
            if limit is None or attempt is None or attempt.state is not S.RUNNING:
                return False
            assert attempt.started_at is not None
            return attempt.started_at + limit + GRACE <= self.now

        def is_stuck(task: Task) -> bool:
            attempt = task.held
            if attempt is None or attempt.state is not S.BUILDING:
                return False
            in_all = attempt.start_before + PULL + 3 * CREATE
            if attempt.phase == Phase.PREPARING:
                return in_all <= self.now
            limit = PULL if attempt.phase == Phase.PULLING else CREATE
            return min(attempt.since + limit, in_all) <= self.now

        def is_late(task: Task) -> bool:
            is_due = task.held is not None and task.held.start_before <= self.now
            return is_due and state_of(task) is S.ASSIGNED and not task.group.once

        def is_unplaced(task: Task) -> bool:
            deadline = task.group.deadline
            if deadline is None or covered_at is None:
                return False
            is_over = deadline <= min(covered_at, self.now)
            is_ending = task.group.job.ending_as is not None
            waits = task.state is S.PENDING and not task.has_started
            return is_over and waits and not is_ending

        return {
            "lost": (lambda t: self._is_lost(t, is_lost), self._lose),
            "unanswered": (is_late, lambda t: self.change(t, Event.START_EXPIRED)),
            "stuck": (
                is_stuck,
                lambda t: self.change(t, Event.SYSTEM_FAILED, reason="build_timeout"),
            ),
            "overrun": (is_overrun, lambda t: self.change(t, Event.KILLED)),
            "unplaced": (is_unplaced, lambda t: self.change(t, Event.DEADLINE_PASSED)),
        }

    def _is_lost(self, task: Task, is_lost: Callable[[Attempt], bool]) -> bool:
        attempt = task.held
        if attempt is None or not is_lost(attempt):
            return False
        if attempt.state in ACTIVE or not task.group.exclusive:
            return True
        if task.group.exclusive == "strict":
            return False
        return attempt.releasable_at is None or attempt.releasable_at <= self.now

    def _lose(self, task: Task) -> None:
        attempt, exclusive = task.held, task.group.exclusive
        assert attempt is not None
        is_due = attempt.releasable_at is not None and attempt.releasable_at <= self.now
        release = "cell_lost" if not exclusive or is_due else ""
        if attempt.state in ACTIVE:
            self.change(task, Event.CELL_LOST, release=release)
        else:
            attempt.release = release
        if not release and exclusive == "lease" and attempt.releasable_at is None:
            attempt.releasable_at = self.now + MARGIN

    def _cascade(self) -> None:
        blocked = [job for job in self.living() if job.waits and not job.has_ended]
        blocked = [job for job in blocked if job.ending_as is None and is_decided(job)]
        for job in blocked:
            if any(item.is_failed for item in job.dependencies):
                self.end(job, S.KILLED)
        self.follow(blocked, [job for job in blocked if job.ending_as is None])
        self._end_hopeless()
        while orphans := [job for job in self.living() if self._is_orphan(job)]:
            for job in orphans:
                self.end(job, S.KILLED)
            self.follow(orphans)
        for job in [job for job in self.living() if job.is_requeuing and not job.has_ended]:
            for task in job.tasks():
                if task.state in ACTIVE and not task.group.once:
                    self.change(task, Event.GANG_REQUEUED)
            self.follow([job])
        for job in [job for job in self.living() if job.is_ending]:
            self.end_open(job)

    def _end_hopeless(self) -> None:
        open_jobs = [j for j in self.living() if not j.has_ended and j.ending_as is None]
        for job in open_jobs:
            vain = [
                group
                for group in job.groups
                if not group.is_startable and self.standing_of(group) == "impossible"
            ]
            for task in (task for group in vain for task in group.tasks):
                if task.state is S.PENDING:
                    task.is_excused = self.change(task, Event.KILLED)
            if vain:
                self.follow([job])

    def _is_orphan(self, job: Job) -> bool:
        parent = self.jobs.get(job.parent) if job.parent else None
        if parent is None or job.has_ended or job.ending_as is not None:
            return False
        end = parent.ending_as or parent.state
        return end not in (S.PENDING, S.RUNNING, S.SUCCEEDED)


def is_decided(job: Job) -> bool:
    """Whether what the job waits for has come, or never will."""
    waits = job.dependencies
    return any(item.is_failed for item in waits) or all(item.is_met for item in waits)
