"""Load the facts of the doctor, without locks: tasks page by page, other rows at once."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from types import MappingProxyType

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.owners import OTHER_OWNERS, OwnerFacts
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.integrity.doctor import (
    TICK_LATE_SECONDS,
    DoctorEntry,
    OpenTask,
    describe_due,
)
from controlplane.domain.state.states import OPEN, TIMED_QUARANTINES, Quarantine
from controlplane.queries.callbacks.unreachable import (
    MOST_COUNTED,
    find_unreached,
    load_undelivered,
)
from controlplane.queries.convergence.cell_health import FORCED_AT, SUSPECTED_AT
from controlplane.queries.convergence.due import find_due
from controlplane.queries.convergence.late_tasks import BUILD_ENDS_AT, DEADLINE
from controlplane.queries.holds import IS_HELD
from controlplane.queries.sql import rows
from controlplane.queries.task_facts import load_facts_of_tasks
from controlplane.queries.ticks import TickFacts, load_tick

_PAGE = 1_000
_OPEN = ", ".join(f"{state:d}" for state in sorted(OPEN))

# Times are of the unreleased attempt if there is one, otherwise of the task.
_TASKS = f"""
    SELECT t.id,
           a.uid IS NOT NULL AND (c.state = 'LOST' OR a.incarnation <> c.incarnation),
           j.ending_as IS NOT NULL AND j.finished_at IS NULL, j.is_requeuing, j.waits_for_jobs,
           g.startable_at IS NOT NULL, {DEADLINE} IS NOT NULL AND t.started_at IS NULL,
           g.timeout_seconds IS NOT NULL, {IS_HELD},
           CASE WHEN a.uid IS NULL THEN t.updated_at
                ELSE COALESCE(a.finished_at, a.state_since) END,
           CASE
               WHEN a.uid IS NULL AND {IS_HELD} THEN NULL
               WHEN a.uid IS NULL THEN CASE WHEN t.started_at IS NULL THEN {DEADLINE} END
               WHEN a.finished_at IS NOT NULL
                    AND (c.state = 'LOST' OR a.incarnation <> c.incarnation) THEN a.releasable_at
               WHEN a.finished_at IS NOT NULL AND a.stop_forced_at IS NULL THEN {FORCED_AT}
               WHEN a.finished_at IS NOT NULL THEN {SUSPECTED_AT}
               WHEN a.state = {S.ASSIGNED:d} AND NOT g.at_most_once THEN a.start_before
               WHEN a.state = {S.BUILDING:d} THEN {BUILD_ENDS_AT}
               WHEN a.state = {S.RUNNING:d} THEN
                   a.started_at + make_interval(secs => g.timeout_seconds + %(grace)s)
           END,
           COALESCE(c.state = 'QUARANTINED', false)
    FROM controlplane_task t
    JOIN controlplane_job j ON j.id = t.job_id
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    JOIN controlplane_pool p ON p.id = j.pool_id
    LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid AND a.released_at IS NULL
    LEFT JOIN controlplane_cell c ON c.id = a.cell_id
    WHERE t.id > %(after)s AND (t.state IN ({_OPEN}) OR t.attempt_open)
    ORDER BY t.id LIMIT %(page)s
    """


def load_open_tasks(policy: Policy) -> Iterator[OpenTask]:
    """Yield all tasks that are open or have an unreleased attempt."""
    after = 0
    while True:
        found = rows(
            _TASKS,
            {
                "after": after,
                "page": _PAGE,
                "patience": policy.stop_patience,
                "force_patience": policy.force_patience,
                "grace": policy.timeout_grace,
            },
        )
        task_ids = [task_id for task_id, *_ in found]
        facts = {item.task_id: item for item in load_facts_of_tasks(task_ids)}
        for task_id, *flags, since, due_at, is_quarantined in found:
            after = task_id
            if task_id in facts:
                yield OpenTask(OwnerFacts(facts[task_id], *flags), since, due_at, is_quarantined)
        if len(found) < _PAGE:
            return


def find_unwell(now: datetime, policy: Policy) -> Iterator[DoctorEntry]:
    """Yield the findings about everything except tasks."""
    yield from _ticks(now)
    if is_in_time(load_tick("convergence"), now):  # convergence sends the probes
        yield from _shards(now)
    yield from _cells(now, policy)
    yield from _callbacks(now, policy)
    yield from _kept_longer(now, policy)
    yield from _due(now, policy)
    for kind, subject, text, raised_at in rows(
        "SELECT kind, subject, text, raised_at FROM controlplane_alert"
        " WHERE cleared_at IS NULL ORDER BY raised_at, id LIMIT 100"
    ):
        yield DoctorEntry(
            f"alert {kind}", f"{subject}: {text}", raised_at, "an operator", _READ, True
        )
    [(letters, first)] = rows("SELECT count(*), min(at) FROM controlplane_deadletter")
    if letters:
        what = "messages that could not be applied"
        yield DoctorEntry("dead letters", what, first, "an operator", _READ, True, letters)


_TICKS = MappingProxyType(
    {
        "placement": "nothing is placed before",
        "convergence": "nothing else here acts before",
        "callbacks": "callbacks are not delivered before",
    }
)
_READ = "once an operator closes it: docs/troubleshooting.md"


def is_in_time(tick: TickFacts, now: datetime) -> bool:
    """Return whether the tick has ended a run recently."""
    latest = tick.finished_at
    return latest is not None and abs(now - latest).total_seconds() <= TICK_LATE_SECONDS


def _ticks(now: datetime) -> Iterator[DoctorEntry]:
    for name, waits in _TICKS.items():
        tick = load_tick(name)
        latest = tick.finished_at
        if not is_in_time(tick, now):
            what = "has never been through" if latest is None else "is not through any more"
            acts = f"once its worker, beat and Redis run: {waits}"
            yield DoctorEntry(f"tick {name}", what, latest, "an operator", acts, True)
        elif tick.hold_until is not None and tick.hold_until > now:
            acts = describe_due(tick.hold_until, now=now, interval=0)
            what = "listens first, after a gap of its own: nothing is lost or overdue before"
            yield DoctorEntry(f"tick {name}", what, latest, "convergence", acts)


def _shards(now: datetime) -> Iterator[DoctorEntry]:
    found = rows(
        """
        SELECT shard, COALESCE(delivered_until, sent_at) FROM controlplane_inboxprobe
        WHERE COALESCE(delivered_until, sent_at) <= %s ORDER BY shard
        """,
        [now - timedelta(seconds=TICK_LATE_SECONDS)],
    )
    for shard, delivered_until in found:
        acts = "once its worker runs: no cell is lost before"
        yield DoctorEntry(
            f"inbox {shard}", "brings back no probe", delivered_until, "an operator", acts, True
        )


_CURED_BY_HEARTBEATS = MappingProxyType(
    {
        Quarantine.UNFIT: "once it reports that it is fit",
        Quarantine.ORPHANS: "once its heartbeats show that what it must not have is gone",
    }
)


def _cells(now: datetime, policy: Policy) -> Iterator[DoctorEntry]:
    found = rows(
        """
        SELECT c.name, c.state, c.state_reason, c.revoked_at, c.quarantined_for,
               c.quarantined_until,
               l.last_message_at, l.expires_at
        FROM controlplane_cell c LEFT JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE c.incarnation <> ''
          AND (c.state IN ('LOST', 'QUARANTINED') OR l.expires_at <= %s) ORDER BY c.name
        """,
        [now],
    )
    for name, state, reason, revoked_at, cause, until, last_message_at, expires_at in found:
        subject, what = f"cell {name}", f"{state}: {reason}"
        if revoked_at is not None:
            what = f"its key is {reason}"
            acts = "READY once it is started with a new key (manage.py enroll_cell --renew)"
            yield DoctorEntry(subject, what, revoked_at, "its operator renews its key", acts)
        elif state == "LOST":
            acts = "declared: nothing waits for it; READY once it is started again"
            yield DoctorEntry(subject, what, last_message_at, "its operator starts it", acts)
        elif state == "QUARANTINED" and cause in TIMED_QUARANTINES and until is not None:
            acts = describe_due(until, now=now, interval=policy.interval)
            yield DoctorEntry(subject, what, None, "convergence, rule 6", acts)
        elif state == "QUARANTINED":
            by_itself = _CURED_BY_HEARTBEATS.get(cause)
            actor = "the cell itself" if by_itself else "its cell, its loss, or an operator"
            acts = by_itself or "once its stops are confirmed"
            yield DoctorEntry(subject, what, None, actor, acts, not by_itself)
        else:
            acts = "LOST after 3 ticks without a message; suppressed if most of its pool is silent"
            yield DoctorEntry(subject, "is silent", expires_at, "convergence, rule 1", acts)


# The limit of receivers listed one by one, so that they do not hide other findings.
_HOSTS = 10


def _callbacks(now: datetime, policy: Policy) -> Iterator[DoctorEntry]:
    """Yield findings by receiver, the longest waiting first, without callbacks of deleted jobs."""
    hosts = find_unreached(now, late=now - timedelta(seconds=TICK_LATE_SECONDS))
    is_at_work = bool(
        rows("SELECT 1 FROM controlplane_callback WHERE state = 'claimed' LIMIT 1") if hosts else ()
    )
    for item in load_undelivered(hosts[:_HOSTS], now=now):
        subject = f"callbacks to {item.host}"
        if item.given_up:
            acts = "repeat it in the admin, once its receiver answers"
            what = f"given up{_more(item.given_up)}: {item.fault_of_given_up}"
            yield DoctorEntry(subject, what, item.since, "an operator", acts, True, item.given_up)
        if item.due_at is None:
            continue
        is_late = (now - item.due_at).total_seconds() > TICK_LATE_SECONDS
        what = f"waiting{_more(item.waiting)}"
        if item.tried:
            what += f"; {item.tried} of them tried before, the last one: {item.fault}"
        elif item.waiting < MOST_COUNTED:
            what += " for their first try"
        acts = describe_due(item.due_at, now=now, interval=policy.interval)
        if is_late:
            behind = f"in turn, behind {item.claimed} that are being tried"
            acts = behind if is_at_work else "overdue"
        needed = is_late and not is_at_work
        actor = "the callbacks worker"
        yield DoctorEntry(subject, what, item.since, actor, acts, needed, item.waiting)
    if len(hosts) > _HOSTS:
        what = f"waiting or given up, at {len(hosts) - _HOSTS} more receivers"
        acts = "each in turn; the admin lists them"
        yield DoctorEntry("callbacks", what, None, "the callbacks worker", acts)


def _more(count: int) -> str:
    return ", and more" if count >= MOST_COUNTED else ""


def _kept_longer(now: datetime, policy: Policy) -> Iterator[DoctorEntry]:
    [(count, first)] = rows(
        """
        SELECT count(*), min(expires_at) FROM controlplane_job
        WHERE expires_at <= %s AND deleted_at IS NULL
        """,
        [now - timedelta(seconds=10 * policy.interval)],
    )
    if count:
        what = "kept beyond their time: something that has not ended refers to them"
        acts = "checked each tick: once what refers to them has ended"
        yield DoctorEntry("expired jobs", what, first, "convergence, rule 11", acts, False, count)


def _due(now: datetime, policy: Policy) -> Iterator[DoctorEntry]:
    """Yield the due work of rules, except work on tasks."""
    owners = {owner.rule: owner for owner in OTHER_OWNERS if owner.rule}
    due = find_due(now, load_tick("placement").covered_at, policy, among=sorted(owners))
    when = f"in the next tick, within {policy.interval:g} s"
    if not is_in_time(load_tick("convergence"), now):
        when = "once the convergence tick runs"
    covered = {"silent_leases", "cleared_cells", "expired_jobs", "images"}
    covered |= {"samples", "recount", "stored_totals", "orphans", "orphan_files", "cache_size"}
    for rule in sorted(due - covered):
        owner = owners[rule]
        acts = f"{when}: {owner.then}"
        yield DoctorEntry(f"rule {rule}", owner.what, None, owner.actor, acts)
