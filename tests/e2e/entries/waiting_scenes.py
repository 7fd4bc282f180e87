"""Tasks that wait, each for another pending reason, until the remedy lets them run."""

import os
import signal

from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Cast, Steps, alert, reason

LATER = "2040-01-01T00:00:00Z"
LONG = "sleep 600"

cast = Cast()


def group(name: str, script: str, **fields: object) -> dict[str, object]:
    """A group of one simulated task."""
    resources = {"cpu": 0.1, "memory": "64Mi"}
    return {"name": name, "image": "x", "command": script.split(), "resources": resources, **fields}


def running(it: LiveStack, job_id: int) -> Steps:
    """Wait until a task runs, and end the job."""
    yield it.runs(job_id)
    it.session.cancel_job(job_id)


@cast.scene(reason("held", 0), steady=["held"])
def is_held(it: LiveStack) -> Steps:
    cell = it.cell_in("held")
    yield it.cell_is(cell, "READY")
    it.session.cordon(cell)
    job = it.submit("held")
    it.run("hold", job, "--reason", "the data is wrong")
    it.session.uncordon(cell)
    yield it.waits(job, "held", 0)
    it.run("release", job)
    yield it.ends(job)


@cast.scene(reason("held", 1), steady=["project"])
def is_in_held_project(it: LiveStack) -> Steps:
    it.session.put_project("halted")
    it.run("project", "hold", "default/halted", "--reason", "over budget")
    job = it.submit("project", project="halted")
    yield it.waits(job, "held", 1)
    it.run("project", "release", "default/halted")
    yield it.ends(job)


@cast.scene(reason("backing_off", 0), steady=["backoff"])
def backs_off(it: LiveStack) -> Steps:
    job = it.submit("backoff", "fail-first 5", retries={"failure": 10})
    yield it.waits(job, "backing_off", 0)
    yield it.ends(job)


@cast.scene(
    reason("waiting_for_previous_attempt"), alert("stop_unconfirmed"), own={"stuck-1": "stuck"}
)
def does_not_confirm_a_stop(it: LiveStack) -> Steps:
    it.start_cell("stuck-1", driver="process")
    yield it.cell_is("stuck-1", "READY")
    job = it.submit_process("stuck", "sleep 600", stop_grace_seconds=0)
    yield it.runs(job)
    [lock] = it.home_of("stuck-1").rglob("lock")
    spawner = int(lock.read_text())
    os.kill(spawner, signal.SIGSTOP)
    try:
        it.session.drain("stuck-1", deadline_seconds=0)
        yield it.waits(job, "waiting_for_previous_attempt")
        yield it.shows("stop_unconfirmed", "stuck-1")
    finally:
        os.kill(spawner, signal.SIGCONT)
    yield it.closed("stop_unconfirmed", "stuck-1")
    it.session.uncordon("stuck-1")
    yield from running(it, job)


@cast.scene(reason("waiting_for_previous_attempt"), own={"scrap-1": "scrap"})
def waits_for_a_silent_cell(it: LiveStack) -> Steps:
    it.start_cell("scrap-1")
    yield it.cell_is("scrap-1", "READY")
    job = it.submit("scrap", LONG, exclusive="strict")  # its loss alone does not release it
    yield it.runs(job)
    it.signal_cell("scrap-1", signal.SIGSTOP)
    it.session.drain("scrap-1", deadline_seconds=0)
    yield it.waits(job, "waiting_for_previous_attempt")
    [task] = it.session.tasks(job)
    [attempt] = it.session.attempts(task["id"])
    it.run("release-attempt", attempt["uid"], "--reason", "the machine is scrap")
    it.signal_cell("scrap-1", signal.SIGCONT)
    it.session.uncordon("scrap-1")
    yield from running(it, job)


@cast.scene(reason("waiting_for_job"), steady=["jobs"])
def depends_on_job(it: LiveStack) -> Steps:
    it.submit("jobs", "sleep 20", guid="first")
    job = it.submit("jobs", depends_on=[{"job": "first"}])
    yield it.waits(job, "waiting_for_job")
    yield it.ends(job)


@cast.scene(reason("waiting_for_dependency"), steady=["groups"])
def depends_on_group(it: LiveStack) -> Steps:
    groups = [group("a", "sleep 20"), group("b", "noop", depends_on=[{"group": "a"}])]
    job = it.submit("groups", groups=groups)
    yield it.waits(job, "waiting_for_dependency")
    yield it.ends(job)


@cast.scene(reason("waiting_for_cache", 0), steady=["cache"])
def waits_for_identical_task(it: LiveStack) -> Steps:
    cache = {"enabled": True, "serialize": True}
    first = it.submit("cache", LONG, cache=cache)
    yield it.runs(first)
    job = it.submit("cache", LONG, cache=cache)
    yield it.waits(job, "waiting_for_cache", 0)
    it.run("cancel", first)
    yield from running(it, job)


@cast.scene(reason("waiting_for_start_time"), steady=["start"])
def starts_later(it: LiveStack) -> Steps:
    job = it.submit("start", start_after=LATER)
    yield it.waits(job, "waiting_for_start_time")
    it.run("cancel", job)
    yield it.ends(it.submit("start"))


@cast.scene(reason("quota_exceeded"), steady=["quota"])
def exceeds_quota(it: LiveStack) -> Steps:
    it.session.put_project("small")
    it.run("quota", "project", "default/small", "--set", "running_tasks=1")
    job = it.submit("quota", LONG, replicas=2, project="small")
    yield it.waits(job, "quota_exceeded")
    it.run("quota", "project", "default/small", "--set", "running_tasks=2")
    yield it.runs(job, 2)
    it.session.cancel_job(job)


@cast.scene(reason("insufficient_tokens"), steady=["tokens"])
def lacks_tokens(it: LiveStack) -> Steps:
    it.session.put_pool("tokens", {"tokens": {"licence": 3}})
    resources = {"cpu": 0.1, "memory": "64Mi", "licence": 2}
    job = it.submit("tokens", LONG, replicas=2, resources=resources)
    yield it.waits(job, "insufficient_tokens")
    it.run("pools", "tokens", "--set", "tokens.licence=4")
    yield it.runs(job, 2)
    it.session.cancel_job(job)


@cast.scene(reason("concurrency_limit", 0), steady=["keys"])
def finds_its_key_full(it: LiveStack) -> Steps:
    rule = {"key": "customer-42", "limit": 1}
    first = it.submit("keys", LONG, concurrency=rule)
    yield it.runs(first)
    job = it.submit("keys", concurrency=rule)
    yield it.waits(job, "concurrency_limit", 0)
    it.run("cancel", first)
    yield it.ends(job)


@cast.scene(reason("concurrency_limit", 1), steady=["rates"])
def exceeds_the_rate_of_its_key(it: LiveStack) -> Steps:
    rule = {"key": "customer-43", "starts": {"count": 1, "per_seconds": 20}}
    yield it.ends(it.submit("rates", concurrency=rule))
    job = it.submit("rates", concurrency=rule)
    yield it.waits(job, "concurrency_limit", 1)
    yield it.ends(job)


@cast.scene(reason("no_cell_matches", 0), steady=["zones"], later=["zones"])
def matches_no_cell(it: LiveStack) -> Steps:
    yield it.cell_is(it.cell_in("zones"), "READY")
    constraint = {"key": "zone", "op": "eq", "values": ["b"]}
    job = it.submit("zones", constraints=[constraint])
    yield it.waits(job, "no_cell_matches", 0)
    yield it.later_cell("zones")
    yield it.ends(job)


@cast.scene(reason("no_cell_matches", 1), steady=["cordoned"])
def finds_no_ready_cell(it: LiveStack) -> Steps:
    cell = it.cell_in("cordoned")
    yield it.cell_is(cell, "READY")
    it.session.cordon(cell)
    job = it.submit("cordoned")
    yield it.waits(job, "no_cell_matches", 1)
    it.session.uncordon(cell)
    yield it.ends(job)


@cast.scene(reason("no_cell_matches", 2), later=["empty"])
def finds_no_cell(it: LiveStack) -> Steps:
    job = it.submit("empty")
    yield it.waits(job, "no_cell_matches", 2)
    yield it.later_cell("empty")
    yield it.ends(job)


@cast.scene(reason("insufficient_resources", 0), steady=["memory"])
def lacks_memory(it: LiveStack) -> Steps:
    large = it.submit("memory", LONG, resources={"cpu": 0.1, "memory": "3Gi"})
    yield it.runs(large)
    job = it.submit("memory", resources={"cpu": 0.1, "memory": "2Gi"})
    yield it.waits(job, "insufficient_resources", 0)
    it.run("cancel", large)
    yield it.ends(job)


@cast.scene(reason("insufficient_resources", 1), steady=["reserved"])
def lacks_what_is_reserved(it: LiveStack) -> Steps:
    """The first of two evictions that make room for a larger task is over."""
    evicted = []
    for script in (LONG, f"deaf {LONG}"):
        evicted.append(it.submit("reserved", script, cpu=2, band="batch", stop_grace_seconds=15))
        yield it.runs(evicted[-1])
    large = it.submit("reserved", "sleep 1", cpu=4, band="interactive")
    job = it.submit("reserved", band="batch")
    yield it.waits(job, "insufficient_resources", 1)
    yield it.ends(large)
    for former in evicted:
        it.session.cancel_job(former)
    yield it.ends(job)


@cast.scene(reason("insufficient_resources", 2), steady=["larger"])
def is_larger_than_every_cell(it: LiveStack) -> Steps:
    yield it.cell_is(it.cell_in("larger"), "READY")
    job = it.submit("larger", resources={"cpu": 0.1, "memory": "6Gi"})
    yield it.waits(job, "insufficient_resources", 2)
    it.run("cancel", job)
    yield it.ends(it.submit("larger", resources={"cpu": 0.1, "memory": "2Gi"}))


@cast.scene(reason("waiting_for_gang"), steady=["gang"], later=["gang"])
def waits_for_gang(it: LiveStack) -> Steps:
    yield it.cell_is(it.cell_in("gang"), "READY")
    job = it.submit("gang", LONG, cpu=2, coscheduled=True, replicas=3)
    yield it.waits(job, "waiting_for_gang")
    yield it.later_cell("gang")
    yield it.runs(job, 3)
    it.session.cancel_job(job)


@cast.scene(reason("queue_position", 0), steady=["strict"])
def stands_behind(it: LiveStack) -> Steps:
    it.session.put_pool("strict", {"strict_fifo": True, "preemption": False})
    large = it.submit("strict", LONG, cpu=3, replicas=2)
    yield it.runs(large)
    job = it.submit("strict")
    yield it.waits(job, "queue_position", 0)
    it.run("move", job, "--to", "front")
    yield it.ends(job)
    it.session.cancel_job(large)
