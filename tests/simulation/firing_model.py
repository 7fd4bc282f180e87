"""What each instant of a schedule must become: a model of docs/schedules.md of its own.

It uses nothing of the product.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tests.simulation.local_times import LocalTimes

MISSED_AFTER_SECONDS = 60


@dataclass(slots=True)
class Period:
    """From when on, and until when, a schedule fires. `end`: None while it does."""

    begin: datetime
    end: datetime | None = None
    done_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """A line of the history. `job`: the number of its job."""

    at: datetime
    outcome: str
    fired_at: datetime
    job: int | None


@dataclass(frozen=True, slots=True)
class JobTimes:
    """A job of a schedule."""

    number: int
    created_at: datetime
    finished_at: datetime | None
    is_ending: bool

    def is_open_at(self, at: datetime) -> bool:
        """Return whether it had not finished then."""
        return self.finished_at is None or self.finished_at > at


@dataclass
class Record:
    """A schedule with its rules, its periods, and the lines that were checked."""

    name: str
    catch_up: str
    overlap: str
    minutes: LocalTimes
    periods: list[Period] = field(default_factory=list)
    manual: set[datetime] = field(default_factory=set)
    known: dict[datetime, Firing] = field(default_factory=dict)
    whole_at: datetime | None = None
    jobs: Mapping[str, JobTimes] = field(default_factory=dict)

    def guid_of(self, at: datetime) -> str:
        """Return the guid of the job of an instant."""
        return f"{self.name}/{at:%Y-%m-%dT%H:%M:%SZ}"


def check_record(
    record: Record,
    firings: Sequence[Firing],
    jobs: Mapping[str, JobTimes],
    *,
    now: datetime,
    is_whole: bool,
    is_active: bool,
) -> list[str]:
    """Return what is wrong after a tick at `now`. `is_whole`: it was not killed."""
    regular = [firing for firing in firings if firing.at not in record.manual]
    fresh = sorted(
        (firing for firing in regular if firing.at not in record.known), key=lambda it: it.at
    )
    wrong = list(_check_jobs(record, regular, jobs, is_whole))
    at_an_end = [line for line in fresh if line.fired_at in {it.end for it in record.periods}]
    fresh = [line for line in fresh if line not in at_an_end]
    wrong += _check_end(record, at_an_end, jobs)
    wrong += _check_lines(record, regular, jobs, is_active)
    period = record.periods[-1]
    if period.end is None or fresh:
        wrong += _check_batch(record, period, fresh, jobs, now, is_whole, is_active)
    if record.overlap == "queue":
        wrong += _check_queue(record, regular, jobs, now, is_whole, is_active)
    if record.overlap == "replace":
        wrong += _check_replaced(record, regular, jobs)
    record.known = {firing.at: firing for firing in regular}
    record.jobs = jobs
    if is_whole:
        record.whole_at = now
    return wrong


def _check_jobs(
    record: Record, regular: Sequence[Firing], jobs: Mapping[str, JobTimes], is_whole: bool
) -> Iterator[str]:
    """One job per instant that started, with its guid (INV-90, INV-91); none for others."""
    numbers = [line.job for line in regular if line.job is not None]
    if len({*numbers}) < len(numbers) or len({line.at for line in regular}) < len(regular):
        yield f"two lines have one instant or one job: {regular}"
    for line in regular:
        job = jobs.get(record.guid_of(line.at)) if line.outcome == "started" else None
        if line.job != (None if job is None else job.number):
            yield f"the job of {line} is {job}"
    started = {record.guid_of(it.at) for it in regular if it.outcome == "started"}
    for guid in sorted(started - jobs.keys()):
        yield f"{guid} has started, but there is no job"
    manual = {guid for guid in jobs if "." in guid}
    # The job of a tick that was killed is recorded by the next one.
    extra = jobs.keys() - started - manual
    decided = {record.guid_of(it.at) for it in regular if it.outcome != "waiting"}
    for guid in sorted(extra):
        if guid in decided or (is_whole and record.periods[-1].end is None):
            yield f"there is job {guid}, whose instant did not start one"


def _check_lines(
    record: Record, regular: Sequence[Firing], jobs: Mapping[str, JobTimes], is_active: bool
) -> Iterator[str]:
    """Lines stay as they are, but those that waited."""
    seen = {firing.at: firing for firing in regular}
    for at, former in record.known.items():
        present = seen.get(at)
        if present is None:
            yield f"the line of {at} is gone"
        elif former.outcome != "waiting" and present != former:
            yield f"{former} has become {present}"


def _check_end(
    record: Record, lines: Sequence[Firing], jobs: Mapping[str, JobTimes]
) -> Iterator[str]:
    """At the end of a period, only the jobs of its due instants that existed are recorded."""
    for line in lines:
        [period] = [it for it in record.periods if it.end == line.fired_at]
        due = record.minutes.between(period.done_until or period.begin, line.fired_at)
        job = jobs.get(record.guid_of(line.at))
        if line.outcome != "started" or line.at not in due:
            yield f"{line.at} is {line.outcome} at the end of a period; due: {due}"
        elif job is None or job.created_at >= line.fired_at:
            yield f"{line.at} was started at the end of a period, not before"


def _check_batch(
    record: Record,
    period: Period,
    fresh: Sequence[Firing],
    jobs: Mapping[str, JobTimes],
    now: datetime,
    is_whole: bool,
    is_active: bool,
) -> Iterator[str]:
    """The lines of a tick are those of the rules."""
    if not fresh and not is_whole:
        return
    since = period.done_until or period.begin
    due = record.minutes.between(since, now)
    period.done_until = now
    if not due and not fresh:
        return
    before = {at: jobs[guid] for at in due if (guid := record.guid_of(at)) in jobs}
    before = {at: job for at, job in before.items() if job.created_at < now}
    chosen = _choose(record.catch_up, due, now)
    chosen = sorted({*chosen, *before})
    lines = {firing.at: firing.outcome for firing in fresh}
    expected = dict(_expect(record, chosen, before, jobs, now))
    for former, at in zip([None, *due], due, strict=False):
        # One line for instants in succession that start nothing.
        if at not in expected and (former is None or former in chosen):
            expected[at] = {"missed"}
    for at, outcomes in expected.items():
        allowed = outcomes
        if not is_active and at in before:
            allowed = {"started"}
        elif not is_active and at in chosen:
            # Whatever would start is refused; behind an open job, an instant still waits first.
            allowed = {"refused" if outcome == "started" else outcome for outcome in outcomes}
            allowed |= {"refused"} if "skipped" in outcomes else set()
        if lines.get(at) not in allowed:
            yield f"{at} is {lines.get(at)}, expected {sorted(allowed)}"
    for at in sorted(lines.keys() - expected.keys()):
        yield f"{at} is {lines[at]}, but it is no instant that the rules name; due: {due}"


def _choose(catch_up: str, due: Sequence[datetime], now: datetime) -> list[datetime]:
    timely = [at for at in due if (now - at).total_seconds() <= MISSED_AFTER_SECONDS]
    if catch_up == "all":
        return list(due[-100:])
    if catch_up == "latest":
        return timely or list(due[-1:])
    return timely


def _expect(
    record: Record,
    chosen: Sequence[datetime],
    before: Mapping[datetime, JobTimes],
    jobs: Mapping[str, JobTimes],
    now: datetime,
) -> Iterator[tuple[datetime, set[str]]]:
    """Yield each instant that fires with the outcomes it may have."""
    if record.overlap == "allow":
        yield from ((at, {"started"}) for at in chosen)
        return
    if record.overlap == "replace":
        for at in chosen:
            yield at, {"started"} if at in before or at == chosen[-1] else {"skipped"}
        return
    mine = {record.guid_of(at) for at in chosen if at not in before}
    others = [job for guid, job in jobs.items() if guid not in mine and job.created_at <= now]
    is_open = any(job.is_open_at(now) for job in others)
    # A job that finished in this very moment may be seen as either.
    is_unsure = not is_open and any(job.finished_at == now for job in others)
    later = "skipped" if record.overlap == "skip" else "waiting"
    waiting = any(line.outcome == "waiting" for line in record.known.values())
    if record.overlap == "queue" and waiting:
        is_open, is_unsure = True, False
    for at in chosen:
        if at in before:
            yield at, {"started"}
            continue
        if is_open:
            # What waits may be started by the same tick.
            yield at, {later, "started"} if record.overlap == "queue" else {later}
        else:
            yield at, {"started", later} if is_unsure else {"started"}
            is_open = True


def _check_replaced(
    record: Record, regular: Sequence[Firing], jobs: Mapping[str, JobTimes]
) -> Iterator[str]:
    """Once an instant is recorded as started, the jobs before it end, after a death too.

    A job without a line is unknown until its instant is recorded.
    """
    started = sorted(line.at for line in regular if line.outcome == "started")
    if not started or record.guid_of(started[-1]) not in jobs:
        return
    kept = record.guid_of(started[-1])
    known = {*map(record.guid_of, started), *(guid for guid in jobs if "." in guid)}
    for guid in sorted(known & jobs.keys() - {kept}):
        job = jobs[guid]
        is_earlier = job.created_at < jobs[kept].created_at or "." not in guid
        if is_earlier and job.finished_at is None and not job.is_ending:
            yield f"job {guid} goes on, though {kept} replaces it"


def _check_queue(
    record: Record,
    regular: Sequence[Firing],
    jobs: Mapping[str, JobTimes],
    now: datetime,
    is_whole: bool,
    is_active: bool,
) -> Iterator[str]:
    """The jobs of a queue run one after another, in order, and none waits without cause."""
    mine = sorted((guid, job) for guid, job in jobs.items() if "." not in guid)
    for (first, former), (second, job) in itertools.pairwise(mine):
        if former.number > job.number:
            yield f"{second} was started before {first}"
        if former.is_open_at(job.created_at):
            yield f"{second} was started, but {first} had not finished"
    waiting = [firing.at for firing in regular if firing.outcome == "waiting"]
    started = [firing.at for firing in regular if firing.outcome == "started"]
    if waiting and started and min(waiting) < max(started):
        yield f"{max(started)} was started, but {min(waiting)} waits"
    is_idle = all(not job.is_open_at(record.whole_at or now) for job in jobs.values())
    if waiting and is_idle and is_whole and record.whole_at and record.periods[-1].end is None:
        yield f"{min(waiting)} waits, but no job has been unfinished since {record.whole_at}"
