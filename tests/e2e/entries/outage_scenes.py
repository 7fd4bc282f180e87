"""Outages that all work notices: each group of scenes has the stack for itself."""

import psycopg
import redis

from controlplane.contract.wire import broker, queues
from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Cast, Sight, Steps, alert, reason
from tests.e2e.stack import RunningStack, is_running
from tests.harness.small_disk import SmallDisk

MIB = 1 << 20

silence = Cast()
"""The inbox and ticks are stopped for more than a minute; a locked row delays convergence."""

convergence = Cast()
database = Cast()
disk = Cast()


@silence.scene(alert("control_plane_gap", 1), alert("cells_silent"), alert("inbox_dropped"))
def receives_nothing_through_its_inbox(it: LiveStack) -> Steps:
    """Messages fill a shard, which the inbox drops when it runs again."""
    shard = queues.INBOX_QUEUES[0]
    with it.frozen("inbox"):
        yield it.shows("control_plane_gap", "convergence", 1)
        with redis.Redis.from_url(it.stack.environment["CELERY_BROKER_URL"]) as control:
            for _ in range(90):
                control.lpush(shard, broker.plain_message(shard, "x" * MIB))
        yield it.shows("cells_silent", "cells")
    yield it.shows("inbox_dropped", shard)
    yield it.closed("control_plane_gap", "convergence")
    yield it.closed("cells_silent", "cells")
    yield it.closed("inbox_dropped", shard)


@silence.scene(alert("tick_late", 0), reason("queue_position", 1))
def places_nothing(it: LiveStack) -> Steps:
    with it.frozen("placement"):
        job = it.submit_process("default", "true")
        yield it.waits(job, "queue_position", 1)
        yield it.shows("tick_late", "placement", 0)
    yield it.closed("tick_late", "placement")
    yield it.ends(job)


@silence.scene(alert("tick_late", 1))
def has_never_sent_callbacks(it: LiveStack) -> Steps:
    """The database has no run of the tick, as that of a new installation."""
    with it.frozen("callbacks"):
        it.sql("DELETE FROM controlplane_tickstate WHERE name = 'callbacks'")
        yield it.shows("tick_late", "callbacks", 1)
    yield it.closed("tick_late", "callbacks")


@silence.scene(alert("job_skipped", 0))
def cannot_lock_a_job(it: LiveStack) -> Steps:
    """A session keeps the row of a job whose counts are due for a check."""
    job = it.submit("bare")
    subject = f"recount of job {job}"
    with psycopg.connect(it.stack.environment["DATABASE_URL"]) as session:
        session.execute("SELECT FROM controlplane_job WHERE id = %s FOR UPDATE", [job])
        shown = it.shows("job_skipped", subject, 0)

        def locks_and_shows() -> bool:
            session.execute("SELECT 1")  # the server ends a transaction that is idle
            return shown.holds()

        yield Sight(shown.what, locks_and_shows)
    yield it.closed("job_skipped", subject)
    it.session.cancel_job(job)


@convergence.scene(
    alert("control_plane_gap", 0),
    reason("waiting_for_cache", 1),
    reason("waiting_for_gang_to_leave"),
)
def was_down(it: LiveStack) -> Steps:
    """Meanwhile no result is looked up, and no gang is started again."""
    once_failing = (
        "test $CELLRUN_ATTEMPT_NUMBER = 1 || exit 0;"
        " test $CELLRUN_TASK_INDEX = 1 || exit 1; exec sleep 600"
    )
    yield it.closed("control_plane_gap", "convergence")  # of an earlier scene
    with it.frozen("convergence"):
        members = {"replicas": 2, "coscheduled": True, "retries": {"failure": 3}}
        gang = it.submit_process("default", once_failing, **members)
        yield it.waits(gang, "waiting_for_gang_to_leave")
        job = it.submit_process("default", "true", cache={"enabled": True})
        yield it.waits(job, "waiting_for_cache", 1)
        last = "SELECT clock_timestamp() - finished_at > '5 s' FROM controlplane_tickstate"
        yield Sight(
            "five seconds without convergence",
            lambda: it.sql(f"{last} WHERE name = 'convergence'") == [(True,)],
        )
    yield it.shows("control_plane_gap", "convergence", 0)
    yield it.ends(job)
    yield it.ends(gang)
    yield it.closed("control_plane_gap", "convergence")


@database.scene(alert("inbox_batch_lost"))
def loses_the_database(it: LiveStack) -> Steps:
    """PostgreSQL is killed, again if it was back between two batches of the inbox."""
    stack = it.stack
    lost, killed = count_lost(stack), set[int]()

    def runs_again() -> bool:
        pid = stack.pid_of("postgres")
        return pid not in killed and is_running(pid)

    def has_lost_a_batch() -> bool:
        if count_lost(stack) > lost:
            return True
        if runs_again():
            killed.add(stack.kill("postgres"))
        return False

    yield Sight("the inbox has lost a batch", has_lost_a_batch)
    yield Sight("PostgreSQL runs again", runs_again)
    yield it.shows("inbox_batch_lost", "inbox")
    yield it.closed("inbox_batch_lost", "inbox")
    yield it.ends(it.submit_process("default", "true"))


def count_lost(stack: RunningStack) -> int:
    """How often the log of the inbox reports a lost batch."""
    return (stack.home / "log" / "inbox.log").read_text().count('"batch_lost"')


@disk.scene(alert("store_full"))
def has_a_full_store(it: LiveStack) -> Steps:
    small = SmallDisk(it.store)
    small.fill(leave=MIB)
    yield it.shows("store_full", "artifact store")
    small.clear()
    yield it.closed("store_full", "artifact store")
    yield it.ends(it.submit_process("default", "true"))
