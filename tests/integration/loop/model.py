"""A small model of jobs, tasks and attempts, from the text: no rows, no locks, no pages.

It receives what happens, and derives what must then be in the database. What the text leaves open
(which waiting task goes to which cell, which jitter a back-off has) it takes from there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.transitions import Event
from tests.properties import restatement as text
from tests.properties.restatement import ACTIVE, OPEN, Course, Used

STAGES = {S.ASSIGNED: 0, S.BUILDING: 1, S.RUNNING: 2}


@dataclass
class Attempt:
    """One try."""

    uid: str
    cell_id: int
    incarnation: str
    start_before: datetime
    since: datetime
    state: S = S.ASSIGNED
    phase: str = ""
    seq: int = 0
    charged: str = ""
    charge: int = 0
    rule: int | None = None
    started_at: datetime | None = None
    releasable_at: datetime | None = None
    release: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it may have a container."""
        return not self.release


@dataclass
class Task:
    """One task; `attempts` in order, the last one present."""

    id: int
    group: "Group"
    state: S = S.PENDING
    used: Used = field(default_factory=Used)
    attempts: list[Attempt] = field(default_factory=list)
    backs_off: tuple[datetime, datetime] | None = None
    not_before: datetime | None = None
    avoids: tuple[int, ...] = ()
    has_started: bool = False
    is_excused: bool = False

    @property
    def held(self) -> Attempt | None:
        """The attempt that holds it."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].is_held else None


@dataclass
class Group:
    """One group. `limits`: failure, preemption, system."""

    id: int
    job: "Job"
    name: str
    minimum: int
    limits: tuple[int, int, int]
    once: bool
    exclusive: str
    depends_on: list[tuple[str, str]]
    timeout: timedelta | None
    deadline: datetime | None
    is_startable: bool
    is_rest: bool = False
    rules: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    def states(self) -> list[S]:
        """Of its tasks."""
        return [task.state for task in self.tasks]

    def restated(self) -> text.Group:
        """Convert it for the restatement."""
        excused = sum(task.is_excused for task in self.tasks)
        return text.Group(self.states(), self.minimum, excused, not self.once)


@dataclass
class Dependency:
    """`on` until `until`: met, failed, or neither."""

    on: int
    until: str
    is_met: bool = False
    is_failed: bool = False


@dataclass
class Job:
    """One job."""

    id: int
    name: str
    minimum: int
    is_explicit: bool
    tolerated: int
    coscheduled: bool
    scheduling_timeout: timedelta | None
    parent: int | None
    retry_of: int | None
    waits: bool
    groups: list[Group] = field(default_factory=list)
    dependencies: list[Dependency] = field(default_factory=list)
    state: S = S.PENDING
    ending_as: S | None = None
    is_broken: bool = False
    is_requeuing: bool = False
    has_started: bool = False
    is_deleted: bool = False
    is_gone: bool = False

    def tasks(self) -> list[Task]:
        """All of them."""
        return [task for group in self.groups for task in group.tasks]

    @property
    def has_ended(self) -> bool:
        """Whether its state is final."""
        return self.state not in (S.PENDING, S.RUNNING)

    @property
    def is_settled(self) -> bool:
        """Whether it ended, and no container of it may be left."""
        return self.has_ended and not any(task.held for task in self.tasks())

    @property
    def is_ending(self) -> bool:
        """Whether it ends, but some of it is open yet."""
        return self.ending_as is not None and not self.has_ended

    def restated(self) -> text.Job:
        """Convert it for the restatement."""
        groups = [group.restated() for group in self.groups]
        return text.Job(groups, self.minimum, self.is_explicit, self.tolerated, self.has_started)


@dataclass(frozen=True)
class SentReport:
    """A report in flight, with its sender."""

    cell_id: int
    incarnation: str
    report: AttemptReport


class Jobs:
    """All jobs. `now` is set by the user of the model."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.now: datetime

    def living(self) -> list[Job]:
        """Jobs whose rows are there."""
        return [job for job in self.jobs.values() if not job.is_gone]

    def tasks(self) -> list[Task]:
        """All tasks, by id."""
        return sorted((t for job in self.living() for t in job.tasks()), key=lambda t: t.id)

    def find(self, uid: str) -> tuple[Task, Attempt] | None:
        """An attempt."""
        for task in self.tasks():
            for attempt in task.attempts:
                if attempt.uid == uid:
                    return task, attempt
        return None

    def is_read(self, job: Job) -> bool:
        """Whether a retry of it, or of such a retry, has not ended yet."""
        retries = [other for other in self.living() if other.retry_of == job.id]
        return any(not other.has_ended or self.is_read(other) for other in retries)

    # -------------------------------------------------------------------------- tasks

    def change(
        self,
        task: Task,
        event: Event,
        *,
        started_at: datetime | None = None,
        release: str = "",
        never: bool = False,
        reason: str = "",
        code: int | None = None,
    ) -> bool:
        """Let the event happen to the task; False: it does not happen to a task like this.

        `reason`, `code`: of a failure, for the rules of the group.
        """
        attempt = task.held
        start = (attempt and attempt.started_at) or started_at
        is_active = task.state in ACTIVE
        ran = (self.now - start).total_seconds() if start and is_active else 0.0
        once = task.group.once and not never
        is_failure = event in (Event.USER_FAILED, Event.SYSTEM_FAILED)
        number = rule_of(task.group.rules, reason, code) if is_failure else None
        rule = task.group.rules[number - 1]["do"] if number else ""
        limits = task.group.limits
        course = text.follow(task.state, event, task.used, limits, ran=ran, once=once, rule=rule)
        if course is None:
            return False
        self._take(task, course, event, ran)
        if attempt is not None and course.attempt is not None:
            if course.attempt is not attempt.state:
                attempt.since = self.now
            attempt.state, attempt.started_at = course.attempt, start
            attempt.charged, attempt.charge = course.charged, course.charge
            attempt.rule = number
            if course.attempt not in ACTIVE:
                attempt.release = release
        if start is not None:
            task.has_started = task.group.job.has_started = True
        return True

    def _take(self, task: Task, course: Course, event: Event, ran: float) -> None:
        attempt, is_back = task.held, course.task is S.PENDING
        task.state, task.used = course.task, course.used
        task.backs_off = task.not_before = None
        if not is_back and course.task not in ACTIVE:
            task.avoids = ()
        if ran >= 60 or event in (Event.EXITED_ZERO, Event.USER_FAILED):
            task.avoids = ()
        elsewhere = event in (Event.SYSTEM_FAILED, Event.REFUSED, Event.START_EXPIRED)
        if is_back and elsewhere and attempt is not None:
            others = [cell_id for cell_id in task.avoids if cell_id != attempt.cell_id]
            task.avoids = (*others, attempt.cell_id)
            tries = max(task.used.system_row, task.used.refusal_row)
            if course.charged == "failure":
                tries = task.used.system_row + task.used.failure
            task.backs_off = backs_off(5.0, tries, self.now)
        elif is_back and event is Event.USER_FAILED:
            task.backs_off = backs_off(1.0, task.used.failure, self.now)

    # --------------------------------------------------------------------------- jobs

    def follow(self, jobs: Iterable[Job], unblocked: Iterable[Job] = ()) -> None:
        """Derive the jobs from their tasks, and then the dependencies on them."""
        for job in unblocked:
            job.waits = False
        listed = sorted({job.id: job for job in jobs}.items())
        for _, job in listed:
            self._roll(job)
        for _, job in listed:
            self._notify_dependents(job)

    def _roll(self, job: Job) -> None:
        if not job.has_ended:
            self._judge(job)
            follows = text.derive(job.restated())
            is_open = any(task.state in OPEN for task in job.tasks())
            if job.ending_as is None and follows not in (S.PENDING, S.RUNNING) and is_open:
                job.ending_as, job.is_requeuing = follows, False
            if not is_open:
                job.state = job.ending_as or follows
            elif job.ending_as is None or job.state is not S.RUNNING:
                job.state = S.RUNNING if follows is S.RUNNING else S.PENDING
        if not job.has_ended and job.ending_as is None and not job.waits:
            for group in job.groups:
                if not group.is_startable and self.standing_of(group) == "satisfied":
                    group.is_startable = True
                    group.deadline = job.scheduling_timeout and self.now + job.scheduling_timeout

    @staticmethod
    def _judge(job: Job) -> None:
        if not job.coscheduled or job.ending_as is not None:
            job.is_requeuing = False
            return
        restated = job.restated()
        verdict = text.judge(restated.groups, job.minimum)
        if verdict == "broken":
            for group in restated.groups:
                group.states = [S.WORKER_FAILED if s in OPEN else s for s in group.states]
            job.ending_as, job.is_broken, job.is_requeuing = text.derive(restated), True, False
            return
        movable = any(s in ACTIVE for g in restated.groups if g.is_movable for s in g.states)
        job.is_requeuing = verdict == "fell_below" or (job.is_requeuing and movable)

    @staticmethod
    def standing_of(group: Group) -> str:
        """How all that the group waits for stands."""
        others = {other.name: other for other in group.job.groups}
        found = {_standing(others[name], until) for name, until in group.depends_on}
        if "impossible" in found:
            return "impossible"
        return "open" if "open" in found else "satisfied"

    def _notify_dependents(self, job: Job) -> None:
        for other in self.living():
            for dependency in other.dependencies:
                if dependency.on != job.id or dependency.is_met or dependency.is_failed:
                    continue
                standing = job_standing(job, dependency.until)
                dependency.is_met = standing == "satisfied"
                dependency.is_failed = standing == "impossible"

    def end(self, job: Job, state: S) -> None:
        """The job must end so, unless it ends or ended already."""
        if not job.has_ended and job.ending_as is None:
            job.ending_as = state

    def end_open(self, job: Job) -> None:
        """End the open tasks of a job that is ending."""
        if job.is_ending:
            for task in job.tasks():
                if task.state in OPEN:
                    self.change(task, Event.GANG_BROKEN if job.is_broken else Event.KILLED)
            self.follow([job])

    # ------------------------------------------------------------------------ reports

    def receive(self, batch: Iterable[SentReport]) -> None:
        """Reports arrive together: of each attempt and sender the newest counts."""
        newest: dict[tuple[str, int, str], SentReport] = {}
        for sent in batch:
            key = sent.report.uid, sent.cell_id, sent.incarnation
            if key not in newest or newest[key].report.seq < sent.report.seq:
                newest[key] = sent
        touched = [job for sent in newest.values() for job in self._receive(sent)]
        self.follow(touched)

    def _receive(self, sent: SentReport) -> Iterator[Job]:
        report, found = sent.report, self.find(sent.report.uid)
        if found is None:
            return
        task, attempt = found
        sender = sent.cell_id, sent.incarnation
        if sender != (attempt.cell_id, attempt.incarnation) or report.seq <= attempt.seq:
            return
        if attempt.state not in ACTIVE:
            if attempt.is_held and report.gone and report.state not in OPEN:
                attempt.release, attempt.seq = "confirmed", report.seq
                yield task.group.job
            return
        if report.state in OPEN and STAGES.get(report.state, -1) < STAGES[attempt.state]:
            return
        started_at = self._reported_start(report)
        if report.state is attempt.state:
            attempt.seq = report.seq
            if report.phase and report.phase != attempt.phase:
                attempt.phase, attempt.since = report.phase, self.now
            if started_at and attempt.started_at is None:
                attempt.started_at = started_at
            return
        event = event_of(report, attempt)
        release = "confirmed" if report.gone else ""
        never = report.never_created and report.gone
        reason = "system_failure" if event is Event.SYSTEM_FAILED else "exit_status"
        if self.change(
            task,
            event,
            started_at=started_at,
            release=release,
            never=never,
            reason=reason,
            code=report.exit_code,
        ):
            attempt.seq, attempt.phase = report.seq, report.phase or attempt.phase
            yield task.group.job

    def _reported_start(self, report: AttemptReport) -> datetime | None:
        has_run = report.started_at is not None or report.state is S.RUNNING
        return self.now if has_run else None


def rule_of(rules: list[dict[str, Any]], reason: str, code: int | None) -> int | None:
    """The number of the first rule whose conditions all hold."""
    for number, rule in enumerate(rules, 1):
        has_code = "codes" not in rule or code in rule["codes"]
        if has_code and rule.get("reason", reason) == reason:
            return number
    return None


def backs_off(base: float, tries: int, now: datetime) -> tuple[datetime, datetime]:
    """The ends of the shortest and longest: doubled each time, 5 min at most, less a quarter."""
    full = timedelta(seconds=min(base * 2 ** (tries - 1), 300.0))
    return now + full * 0.75, now + full


def _standing(group: Group, until: str) -> str:
    states = group.states()
    is_open = any(state in OPEN for state in states)
    if until == "started":
        ran = sum(task.has_started or task.state is S.SUCCEEDED for task in group.tasks)
        # Of a group that a retry has only the rest of, some task ran in the job that is retried.
        met = ran >= group.minimum and (ran > 0 or group.is_rest)
    elif until == "finished":
        met = not is_open
    else:
        met = not is_open and states.count(S.SUCCEEDED) >= group.minimum
    return "satisfied" if met else "open" if is_open else "impossible"


def job_standing(job: Job, until: str) -> str:
    """How "`job` until `until`" stands."""
    if until == "settled":
        return "satisfied" if job.is_settled else "open"
    met = {
        "started": job.has_started or job.state is S.SUCCEEDED,
        "finished": job.has_ended,
        "succeeded": job.state is S.SUCCEEDED,
    }[until]
    return "satisfied" if met else "impossible" if job.has_ended else "open"


def event_of(report: AttemptReport, attempt: Attempt) -> Event:
    """Return the event that a report stands for."""
    match report.state:
        case S.BUILDING:
            return Event.BUILDING
        case S.RUNNING:
            return Event.STARTED
        case S.SUCCEEDED:
            return Event.EXITED_ZERO
        case S.PREEMPTED:
            return Event.DRAINED
        case S.KILLED:
            return Event.KILLED if report.reason == "timeout" else Event.VANISHED
        case S.WORKER_FAILED:
            is_refusal = attempt.state is S.ASSIGNED and report.reason == "refused"
            return Event.REFUSED if is_refusal else Event.VANISHED
    if report.failure_kind is FailureKind.SYSTEM:
        return Event.SYSTEM_FAILED
    is_outside = report.failure_kind is FailureKind.OUTSIDE
    return Event.VANISHED if is_outside else Event.USER_FAILED
