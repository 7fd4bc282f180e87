"""What raw SQL breaks, `manage.py check_invariants` finds: each invariant, and each kind of row.

Where a constraint stands in the way, it is dropped first: the command must not rely on it. All of
it happens in a transaction that is rolled back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity import INVARIANTS
from controlplane.inbox.batches import Inbox
from controlplane.models import Attempt, Job, Task, TaskGroup
from controlplane.outbox import transport
from controlplane.queries.sql import execute
from tests.integration.loop.conftest import Loop, Wire

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Planted:
    """Invariant `number` does not hold of `subject` once the statements were run, one by one."""

    number: int
    subject: str
    statements: tuple[str, ...]


def plant(number: int, subject: str, *statements: str) -> Planted:
    return Planted(number, subject, statements)


JOB, GROUP, TASK = "controlplane_job", "controlplane_taskgroup", "controlplane_task"
ATTEMPT, HISTORY = "controlplane_attempt", "controlplane_transition"
CELL, LEASE = "controlplane_cell", "controlplane_celllease"
DEPENDENCY = "controlplane_jobdependency"
SCHEDULE = (
    "INSERT INTO controlplane_schedule (project_id, name, owner_id, cron, time_zone, catch_up,"
    " overlap, job, is_paused, paused_because, created_at, updated_at)"
    " SELECT %(project)s, 'nightly', owner_id, '30 2 * * *', 'UTC', 'all', 'allow', '{}', true, '',"
    " now(), now() FROM controlplane_job LIMIT 1"
)
FIRING = (
    "INSERT INTO controlplane_schedulefiring (schedule_id, fired_at, outcome, text, is_ended, at,"
    " job_id) SELECT id, now(), 'started', '', false,"
)

PLANTED = [
    plant(
        1,
        "task {retried_task}",
        "DROP INDEX task_has_one_unreleased_attempt",
        f"UPDATE {ATTEMPT} SET released_at = NULL, release_kind = ''"
        " WHERE task_id = %(retried_task)s",
    ),
    plant(
        2,
        "task {cancelled_task}",
        f"UPDATE {TASK} SET attempt_open = false WHERE id = %(cancelled_task)s",
    ),
    plant(
        2,
        "task {retried_task}",
        f"UPDATE {TASK} SET attempt_open = true WHERE id = %(retried_task)s",
    ),
    plant(
        3,
        "task {running_task}",
        f"UPDATE {ATTEMPT} SET state = 2 WHERE uid = %(running_attempt)s",
    ),
    plant(
        4,
        "attempt {retried_attempt}",
        f"UPDATE {ATTEMPT} SET release_kind = '' WHERE uid = %(retried_attempt)s",
    ),
    plant(
        4,
        "attempt {running_attempt}",
        f"ALTER TABLE {ATTEMPT} DROP CONSTRAINT attempt_released_after_its_end",
        f"UPDATE {ATTEMPT} SET released_at = now(), release_kind = 'confirmed'"
        " WHERE uid = %(running_attempt)s",
    ),
    plant(
        5,
        "attempt {retried_attempt}",
        f"UPDATE {ATTEMPT} SET finished_at = created_at - interval '1 s'"
        " WHERE uid = %(retried_attempt)s",
    ),
    plant(
        6,
        "task {retried_task}",
        f"UPDATE {ATTEMPT} SET created_at = created_at - interval '1 h'"
        " WHERE uid = %(retried_attempt)s",
    ),
    plant(
        7,
        "task {running_task}",
        f"UPDATE {TASK} SET attempt_number = 2 WHERE id = %(running_task)s",
    ),
    plant(
        7,
        "task {retried_task}",
        f"DELETE FROM {ATTEMPT} WHERE uid = %(failed_attempt)s",
    ),
    plant(
        8,
        "task {retried_task}",
        f"UPDATE {TASK} SET failure_count = 0 WHERE id = %(retried_task)s",
    ),
    plant(
        8,
        "task {retried_task}",
        f"UPDATE {ATTEMPT} SET charged = '', charge = 0 WHERE uid = %(failed_attempt)s",
    ),
    plant(
        9,
        "attempt {running_attempt}",
        f"UPDATE {ATTEMPT} SET charged = 'failure', charge = 1 WHERE uid = %(running_attempt)s",
    ),
    plant(
        10,
        "task {running_task}",
        f"UPDATE {TASK} SET preemption_count = 101 WHERE id = %(running_task)s",
    ),
    plant(
        11,
        "task {retried_task}",
        f"UPDATE {ATTEMPT} SET state = 5 WHERE uid = %(retried_attempt)s",
    ),
    plant(
        12,
        "attempt {running_attempt}",
        f"UPDATE {ATTEMPT} SET cell_id = 4711 WHERE uid = %(running_attempt)s",
    ),
    plant(
        12,
        "attempt {running_attempt}",
        f"UPDATE {ATTEMPT} SET task_id = 4711 WHERE uid = %(running_attempt)s",
    ),
    plant(
        12,
        "task {running_task}",
        f"DELETE FROM {GROUP} WHERE job_id = %(running_job)s",
        f"DELETE FROM {JOB} WHERE id = %(running_job)s",
    ),
    plant(
        13,
        "task {running_task}",
        f"ALTER TABLE {TASK} DROP CONSTRAINT task_finished_iff_terminal",
        f"UPDATE {TASK} SET finished_at = now() WHERE id = %(running_task)s",
    ),
    plant(
        14,
        "task {retried_task}",
        f"UPDATE {GROUP} SET at_most_once = true WHERE job_id = %(retried_job)s",
    ),
    plant(
        15,
        "attempt {retried_attempt}",
        f"UPDATE {GROUP} SET exclusive = 'strict' WHERE job_id = %(retried_job)s",
        f"UPDATE {ATTEMPT} SET release_kind = 'cell_lost' WHERE uid = %(retried_attempt)s",
    ),
    plant(
        16,
        "attempt {failed_attempt}",
        f"UPDATE {ATTEMPT} SET retry_rule = 1 WHERE uid = %(failed_attempt)s",
    ),
    plant(
        17,
        "attempt {failed_attempt}",
        f"UPDATE {ATTEMPT} SET resources = '{{}}' WHERE uid = %(failed_attempt)s",
    ),
    plant(
        20,
        "group {running_group} (main)",
        f"DELETE FROM {TASK} WHERE group_id = %(running_group)s AND index = 1",
    ),
    plant(
        21,
        "group {running_group} (main)",
        f"UPDATE {GROUP} SET counts[2] = counts[2] + 1 WHERE id = %(running_group)s",
    ),
    plant(
        21,
        "group {waiting_group} (main)",
        f"UPDATE {TASK} SET state = 6, finished_at = now() WHERE group_id = %(waiting_group)s",
    ),
    plant(
        22,
        "group {hopeless_group} (then)",
        f"UPDATE {GROUP} SET killed_by_dependency = 0 WHERE id = %(hopeless_group)s",
    ),
    plant(23, "job {cancelled_job}", f"UPDATE {JOB} SET state = 5 WHERE id = %(cancelled_job)s"),
    plant(
        24,
        "job {retried_job}",
        f"UPDATE {JOB} SET state = 3, finished_at = NULL, settled_at = NULL"
        " WHERE id = %(retried_job)s",
    ),
    plant(
        25,
        "job {cancelled_job}",
        f"UPDATE {JOB} SET settled_at = now() WHERE id = %(cancelled_job)s",
    ),
    plant(
        26,
        "attempt {running_attempt}",
        f"UPDATE {GROUP} SET startable_at = now() + interval '1 h' WHERE id = %(running_group)s",
    ),
    plant(
        27,
        "job {running_job}",
        f"UPDATE {GROUP} SET min_available = 3 WHERE id = %(running_group)s",
        f"UPDATE {JOB} SET coscheduled = true, min_available = 3 WHERE id = %(running_job)s",
    ),
    plant(
        28,
        "group {running_group} (main)",
        f"UPDATE {JOB} SET waits_for_jobs = true WHERE id = %(running_job)s",
    ),
    plant(
        30,
        "cell {cell} (cell-1)",
        f"""UPDATE {CELL} SET capacity = '{{"cpu_millis": 1}}' WHERE id = %(cell)s""",
    ),
    plant(
        31,
        "cell {cell} (cell-1)",
        f"UPDATE {LEASE} SET incarnation = 'two' WHERE cell_id = %(cell)s",
    ),
    plant(31, "cell {cell} (cell-1)", f"DELETE FROM {LEASE} WHERE cell_id = %(cell)s"),
    plant(
        40,
        "task {running_task}",
        f"DELETE FROM {HISTORY} WHERE task_id = %(running_task)s AND to_state = 9",
    ),
    plant(
        40,
        "job {cancelled_job}",
        f"DELETE FROM {HISTORY} WHERE job_id = %(cancelled_job)s AND task_id IS NULL"
        " AND to_state = 6",
    ),
    plant(
        41,
        "task {running_task}",
        f"UPDATE {HISTORY} SET from_state = 4 WHERE task_id = %(running_task)s AND to_state = 3",
    ),
    plant(
        42,
        "task {running_task}",
        f"UPDATE {HISTORY} SET from_state = 2, to_state = 8"
        " WHERE task_id = %(running_task)s AND to_state = 3",
    ),
    plant(
        43,
        "task {running_task}",
        f"UPDATE {HISTORY} SET reason = 'because' WHERE task_id = %(running_task)s",
    ),
    plant(
        44,
        "attempt {running_attempt}",
        f"UPDATE {HISTORY} SET attempt_uid = NULL WHERE attempt_uid = %(running_attempt)s",
    ),
    plant(
        50,
        "job {waiting_job}",
        f"UPDATE {JOB} SET is_watched = false WHERE id = %(waiting_job)s",
    ),
    plant(
        50,
        "job {retried_job}",
        f"UPDATE {JOB} SET parent_id = %(retried_job)s WHERE id = %(running_job)s",
    ),
    plant(
        51,
        "job {dependent_job}",
        f"UPDATE {JOB} SET waits_for_jobs = false WHERE id = %(dependent_job)s",
    ),
    plant(
        52,
        "job {dependent_job}",
        f"UPDATE {DEPENDENCY} SET on_job_id = %(cancelled_job)s WHERE job_id = %(dependent_job)s",
    ),
    plant(
        52,
        "job {dependent_job}",
        f"UPDATE {DEPENDENCY} SET on_job_id = 4711 WHERE job_id = %(dependent_job)s",
    ),
    plant(
        60,
        "task {running_task}",
        f"UPDATE {TASK} SET cache_status = 3, cache_blocked = true WHERE id = %(running_task)s",
    ),
    plant(
        60,
        "task {waiting_task}",
        f"UPDATE {TASK} SET cache_status = 2 WHERE id = %(waiting_task)s",
    ),
    plant(
        61,
        "task {retried_task}",
        f"UPDATE {TASK} SET cache_status = 4 WHERE id = %(retried_task)s",
    ),
    plant(
        61,
        "task {retried_task}",
        f"UPDATE {TASK} SET cache_status = 4, cache_entry_id = 4711 WHERE id = %(retried_task)s",
    ),
    plant(
        62,
        "task {running_task}",
        f"""UPDATE {GROUP} SET cache = '{{"serialize": true}}' WHERE id = %(running_group)s""",
        f"UPDATE {TASK} SET cache_status = 3, cache_identity = gen_random_uuid()"
        " WHERE id = %(running_task)s",
    ),
    plant(
        70,
        "project {project}",
        "INSERT INTO controlplane_storedtotal (project_id, total_bytes) VALUES (%(project)s, 1)",
    ),
    plant(
        70,
        "project {project}",
        "INSERT INTO controlplane_storedsize (job_id, project_id, file_bytes, stdout_bytes,"
        " stderr_bytes, counted_bytes, is_uncounted)"
        " VALUES (%(running_job)s, %(project)s, 2, 0, 0, 2, false)",
    ),
    plant(
        80,
        "concurrency key k of project {project}",
        """UPDATE controlplane_shape SET concurrency = '{"id": 7, "key": "k", "limit": 1}'""",
        f"UPDATE {ATTEMPT} SET concurrency_id = 7 WHERE released_at IS NULL",
    ),
    plant(
        81,
        "attempt {running_attempt}",
        f"UPDATE {ATTEMPT} SET concurrency_id = 7 WHERE uid = %(running_attempt)s",
    ),
    plant(
        81,
        "attempt {running_attempt}",
        f"UPDATE {JOB} SET concurrency_id = 7 WHERE id = %(running_job)s",
    ),
    plant(
        90,
        "instant nightly/2031-05-04T02:30:00Z of project {project}",
        SCHEDULE,
        f"{FIRING} '2031-05-04T02:30:00Z', %(running_job)s FROM controlplane_schedule",
    ),
    plant(
        91,
        "instant nightly/2031-05-04T02:30:00Z of project {project}",
        SCHEDULE,
        f"{FIRING} '2031-05-04T02:30:00Z', 4711 FROM controlplane_schedule",
        f"{FIRING} '2031-05-04T02:31:00.25Z', 4711 FROM controlplane_schedule",
    ),
]


def live(loop: Loop) -> dict[str, Any]:
    """Jobs that ran, run, wait, failed, were cancelled; the ids of what the plants are about."""
    cell = loop.cell()
    small = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
    after_first = [{"group": "first"}]
    hopeless = loop.submit(
        max_task_failures=1,
        groups=[{"name": "first", **small}, {"name": "then", "depends_on": after_first, **small}],
    )
    retried = loop.submit(retries={"failure": 1})
    loop.place()
    for job in (hopeless, retried):
        (attempt,) = loop.attempts(job)
        began = clock.now().timestamp()
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=began))
        cell.end(attempt, S.FAILED, exit_code=1)
    Task.objects.filter(job=retried).update(not_before=None)
    running, cancelled = loop.submit(replicas=2), loop.submit()
    loop.place()
    loop.converge()
    cell.end(loop.attempts(retried)[1], S.SUCCEEDED, exit_code=0)
    began = clock.now().timestamp()
    runs = loop.attempts(running)[0]
    cell.report(AttemptReport(str(runs.uid), 0, S.RUNNING, started_at=began))
    cancel_job(job_id=cancelled.pk, reason="", force=False, actor="me", now=clock.now())
    waiting = loop.submit()
    dependent = loop.submit(depends_on=[{"job": str(waiting.pk)}])
    jobs = (hopeless, retried, running, cancelled, waiting, dependent)
    states = ["FAILED", "SUCCEEDED", "RUNNING", "KILLED", "PENDING", "PENDING"]
    assert [loop.state(job) for job in jobs] == states
    failed, succeeded = loop.attempts(retried)
    return {
        "cell": runs.cell_id,
        "retried_job": retried.pk,
        "retried_task": failed.task_id,
        "failed_attempt": failed.uid,
        "retried_attempt": succeeded.uid,
        "project": running.project_id,
        "running_job": running.pk,
        "running_group": runs.group_id,
        "running_task": runs.task_id,
        "running_attempt": runs.uid,
        "cancelled_job": cancelled.pk,
        "cancelled_task": Task.objects.get(job=cancelled).pk,
        "hopeless_group": TaskGroup.objects.get(job=hopeless, name="then").pk,
        "waiting_job": waiting.pk,
        "waiting_task": Task.objects.get(job=waiting).pk,
        "dependent_job": dependent.pk,
        "waiting_group": TaskGroup.objects.get(job=waiting).pk,
    }


@pytest.fixture(scope="module")
def ids(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """One life for all tests, which leave it as it is."""
    with django_db_blocker.unblock():
        create_default_tenancy()
        owner, _ = create_user(name="owner", password=None, is_operator=False)
        wire = Wire()
        transport.use(wire)
        found = live(Loop(owner, wire, Inbox(sync_seconds=0.0)))
        transport.use(None)
    yield found
    with django_db_blocker.unblock():
        call_command("flush", interactive=False, verbosity=0)


def check() -> tuple[int, list[str]]:
    """Exit code of the command and the lines it prints."""
    output = StringIO()
    try:
        call_command("check_invariants", stdout=output, stderr=StringIO())
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue().splitlines()
    return 0, output.getvalue().splitlines()


def test_rows_are_clean_before_violations_are_planted(ids: dict[str, Any]) -> None:
    assert Job.objects.count() == 6
    assert Attempt.objects.count() > 5
    assert check() == (0, [f"{len(INVARIANTS)} invariants hold"])


@pytest.mark.parametrize(
    "planted", PLANTED, ids=[f"INV-{one.number} {one.subject}" for one in PLANTED]
)
def test_a_violation_planted_by_sql_is_listed_with_its_id(
    planted: Planted, ids: dict[str, Any]
) -> None:
    with transaction.atomic():
        for statement in planted.statements:
            touched = execute(statement, ids)
            assert touched or statement.startswith(("ALTER", "DROP")), f"nothing hit: {statement}"
        code, lines = check()
        transaction.set_rollback(True)
    assert code == 1
    beginning = f"INV-{planted.number} {planted.subject.format(**ids)}: "
    assert [line for line in lines if line.startswith(beginning)], lines


def test_every_invariant_has_a_planted_violation() -> None:
    assert {one.number for one in PLANTED} == {invariant.number for invariant in INVARIANTS}
