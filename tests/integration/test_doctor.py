"""`manage.py doctor` finds work that waits too long, its owner, and the action to take."""

import json
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.cells.operate import revoke_cell
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.messages.reports import AttemptReport, Heartbeat
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.convergence.owners import TASK_OWNERS, find_owner
from controlplane.models import (
    Attempt,
    Callback,
    Cell,
    CellLease,
    DeadLetter,
    InboxProbe,
    Job,
    Task,
    TaskGroup,
    TickState,
    Walk,
)
from controlplane.queries.callbacks import unreachable
from controlplane.queries.convergence import doctor
from controlplane.queries.policy import load_policy
from controlplane.queries.sql import execute, rows
from tests.integration.loop.conftest import Loop
from tests.integration.loop.conftest import loop as loop
from tests.integration.loop.everything import Planting, ago


def run_doctor(*words: str) -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("doctor", *words, stdout=output)
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


def listed() -> dict[str, dict[str, Any]]:
    """What it finds, by subject."""
    return {item["subject"]: item for item in json.loads(run_doctor("--json")[1])}


@pytest.fixture
def well(loop: Loop) -> Loop:
    """Return an installation without findings."""
    for name in ("placement", "convergence", "callbacks"):
        now = clock.now()
        TickState.objects.create(name=name, started_at=now, finished_at=now, covered_at=now)
    for shard in range(len(INBOX_QUEUES)):
        InboxProbe.objects.create(shard=shard, sent_at=clock.now(), delivered_until=clock.now())
    for name in ("recount", "orphans", "orphan_files"):
        Walk.objects.create(name=name, scanned_at=clock.now())
    return loop


def test_healthy_system_has_no_findings(well: Loop) -> None:
    cell = well.cell()
    job = well.submit(replicas=2)
    well.place()
    cell.report(AttemptReport(str(well.attempts(job)[0].uid), 0, S.RUNNING))
    well.submit(name="waits")
    Attempt.objects.filter(state=S.RUNNING).update(state_since=ago(10**6))
    assert run_doctor() == (0, "0 findings, 0 of them need an operator\n")
    assert json.loads(run_doctor("--json")[1]) == []


def test_findings_name_the_acting_rule_and_its_time(well: Loop) -> None:
    cell = well.cell(cpu=64_000)
    names = ("assigned", "building", "overrun", "stopping")
    jobs = {
        name: well.submit(name=name, **({"timeout_seconds": 60} if name == "overrun" else {}))
        for name in names
    }
    well.place()
    of = {name: well.attempts(job)[0] for name, job in jobs.items()}
    for name in names[1:]:
        state = S.BUILDING if name == "building" else S.RUNNING
        cell.report(AttemptReport(str(of[name].uid), 0, state))
    cancel_job(job_id=jobs["stopping"].pk, reason="", force=False, actor="me", now=clock.now())
    jobs["pending"] = well.submit(name="pending", resources={"cpu": 900}, allow_unsatisfiable=True)
    jobs["dated"] = well.submit(name="dated", scheduling_timeout_seconds=600, start_after=None)
    jobs["behind"] = well.submit(name="behind", depends_on=[{"job": str(jobs["pending"].pk)}])
    Task.objects.filter(state=S.PENDING).update(updated_at=ago(300))
    Attempt.objects.update(state_since=ago(100))
    Attempt.objects.filter(pk=of["assigned"].pk).update(start_before=ago(-30))
    Attempt.objects.filter(pk=of["overrun"].pk).update(started_at=ago(100))
    Attempt.objects.filter(pk=of["stopping"].pk).update(finished_at=ago(65), stop_forced_at=ago(25))
    found = {
        name: listed()[f"job {job.pk}, task {Task.objects.get(job=job).pk}"]
        for name, job in jobs.items()
    }
    owners = {name: (item["owner"].split(";")[0], item["acts"]) for name, item in found.items()}
    assert owners["assigned"][0] == "convergence, rule 2"
    assert owners["assigned"][1].startswith("at ")
    assert owners["building"][0] == "convergence, rule 3"
    assert owners["overrun"] == ("its cell", "in the next tick, within 5 s")
    assert owners["stopping"][0].startswith("Sync")
    assert ", in " in owners["stopping"][1]
    assert owners["pending"] == ("placement", "each pass; declared: PENDING without a deadline")
    assert owners["dated"][0] == "placement"
    assert owners["behind"] == ("convergence, rule 7", "checked in each tick")
    assert run_doctor()[0] == 0
    Attempt.objects.filter(pk=of["overrun"].pk).update(started_at=ago(1_000))
    assert "overdue since" in listed()[found["overrun"]["subject"]]["acts"]
    assert run_doctor()[0] == 1


def test_service_within_its_start_period_is_not_overdue(well: Loop) -> None:
    cell = well.cell()
    job = well.submit()
    [group] = TaskGroup.objects.all()
    check = HealthCheck(command=("true",), start_period_seconds=3_000).body()
    TaskGroup.objects.update(launch={**group.launch, "health_check": check})
    well.place()
    [attempt] = well.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CHECKING))
    Attempt.objects.update(state_since=ago(2_000), created_at=ago(2_100))
    [item] = listed().values()
    assert item["acts"].startswith("at ")
    assert run_doctor()[0] == 0
    assert "build" not in " ".join(well.converge())
    assert well.states(job) == ["BUILDING"]


def test_similar_tasks_of_a_job_are_one_finding(well: Loop) -> None:
    job = well.submit(replicas=7)
    Task.objects.update(updated_at=ago(300))
    oldest = Task.objects.filter(job=job).order_by("id")[3]
    Task.objects.filter(pk=oldest.pk).update(updated_at=ago(900))
    [item] = listed().values()
    assert (item["subject"], item["count"]) == (f"job {job.pk}, task {oldest.pk}", 7)
    assert not item["needs_person"]


def test_strictly_exclusive_attempt_of_a_lost_cell_needs_an_operator(well: Loop) -> None:
    cell = well.cell()
    job = well.submit(exclusive="strict")
    well.place()
    [attempt] = well.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    CellLease.objects.update(expires_at=ago(60), last_message_at=ago(90), silent_ticks=9)
    well.converge()
    Attempt.objects.update(finished_at=ago(100), state_since=ago(100), created_at=ago(200))
    code, output = run_doctor()
    assert code == 1
    assert "an operator must: `cellrun release-attempt`" in output
    assert "cell cell-1: LOST" in output
    assert "! alert exclusive_held" in output


def test_revoked_cell_needs_a_new_key(well: Loop) -> None:
    well.cell()
    revoke_cell(name="cell-1", actor="op", reason="its disk was sold", now=clock.now())
    item = listed()["cell cell-1"]
    assert item["what"] == "its key is revoked by op: its disk was sold"
    assert "enroll_cell --renew" in item["acts"]


def test_stop_within_its_grace_on_a_quarantined_cell_needs_no_operator(well: Loop) -> None:
    cell, job = well.cell(), well.submit(stop_grace_seconds=600)
    well.place()
    cell.send(Heartbeat((), unfit="its disk is full").body())
    assert Cell.objects.get().state == "QUARANTINED"
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    Attempt.objects.update(created_at=ago(700), finished_at=ago(65))
    [item] = [item for subject, item in listed().items() if subject.startswith("job")]
    assert item["acts"].startswith("at ")
    assert run_doctor()[0] == 0
    Attempt.objects.update(finished_at=ago(661), stop_forced_at=ago(31))
    assert "an operator must: `cellrun release-attempt`" in run_doctor()[1]
    assert run_doctor()[0] == 1


def test_nothing_is_overdue_during_a_convergence_hold(well: Loop) -> None:
    well.cell()
    job = well.submit()
    well.place()
    Attempt.objects.update(created_at=ago(700), start_before=ago(640))
    TickState.objects.filter(name="convergence").update(hold_until=ago(-20))
    [item] = [item for subject, item in listed().items() if subject.startswith("job")]
    assert item["acts"].startswith("at ")
    assert run_doctor()[0] == 0
    TickState.objects.filter(name="convergence").update(hold_until=ago(61))
    assert "overdue since" in run_doctor()[1]
    assert run_doctor()[0] == 1
    assert well.states(job) == ["ASSIGNED"]


def deaf() -> str:
    InboxProbe.objects.filter(shard=0).update(delivered_until=ago(100))
    return "inbox 0"


def late() -> str:
    TickState.objects.filter(name="placement").update(finished_at=ago(100))
    return "tick placement"


def letter() -> str:
    DeadLetter.objects.create(at=ago(5), source="inbox", error="?", body="?")
    return "dead letters"


def given_up() -> str:
    Callback.objects.create(
        job=Job.objects.get(), owner_id=1, url="http://x/", host="x:80", state="abandoned",
        tries=9, is_tried=True, due_at=ago(9), give_up_at=ago(9), created_at=ago(90_000),
        ended_at=ago(5), last_error="503",
    )  # fmt: skip
    return "callbacks to x:80"


def suspected() -> str:
    Cell.objects.update(state="QUARANTINED", quarantined_for="stops")
    return "cell cell-1"


def untold() -> str:
    TickState.objects.filter(name="callbacks").update(finished_at=ago(100))
    return "tick callbacks"


def put_back() -> str:
    """Put the last run of the tick into the future, as after a clock that was set back."""
    TickState.objects.filter(name="placement").update(finished_at=ago(-3_600))
    return "tick placement"


@pytest.mark.parametrize("plant", [deaf, late, untold, put_back, letter, given_up, suspected])
def test_finding_without_automatic_remedy_needs_an_operator(well: Loop, plant: Any) -> None:
    well.cell()
    well.submit()
    assert run_doctor()[0] == 0
    subject = plant()
    item = listed()[subject]
    assert item["needs_person"]
    assert run_doctor()[0] == 1


def failing_callback() -> str:
    Callback.objects.create(
        job=Job.objects.get(), owner_id=1, url="http://x/", host="x:80", tries=2, is_tried=True,
        due_at=ago(-30), give_up_at=ago(-90_000), created_at=ago(60),
        last_error="no answer within 10 s",
    )  # fmt: skip
    return "callbacks to x:80"


def failing_cell() -> str:
    Cell.objects.update(
        state="QUARANTINED", quarantined_for="failures", quarantined_until=ago(-100)
    )
    return "cell cell-1"


def estranged() -> str:
    Cell.objects.update(state="QUARANTINED", quarantined_for="orphans")
    return "cell cell-1"


def silent() -> str:
    CellLease.objects.update(expires_at=ago(1))
    return "cell cell-1"


def listening() -> str:
    TickState.objects.filter(name="convergence").update(hold_until=ago(-20))
    return "tick convergence"


def unsettled() -> str:
    job = Job.objects.get()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    Job.objects.update(settled_at=None)
    return "rule unsettled_jobs"


def expired() -> str:
    job = Job.objects.get()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    Job.objects.update(expires_at=ago(600))
    return "expired jobs"


@pytest.mark.parametrize(
    "plant", [failing_callback, failing_cell, estranged, silent, listening, unsettled, expired]
)
def test_finding_with_automatic_remedy_names_its_owner(well: Loop, plant: Any) -> None:
    well.cell()
    well.submit()
    item = listed().get(subject := plant()) or listed()[subject]
    assert item["owner"]
    assert item["acts"]
    assert not item["needs_person"]
    assert run_doctor()[0] == 0


def test_every_planted_fault_is_found(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Planting(loop).all(monkeypatch)
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=100))
    Task.objects.filter(state=S.PENDING).update(updated_at=ago(100))
    code, output = run_doctor()
    assert code == 1
    for name in ("unanswered", "stuck-build", "overrun", "stuck-stop", "after-first"):
        assert f"job {jobs[name].pk}," in output, name
    for subject in ("rule resolving", "rule claimed_callbacks", "rule orphaned_jobs", "cell gone"):
        assert subject in output


def test_each_rule_with_a_bound_owns_a_planted_task_and_has_its_time(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Planting(loop).all(monkeypatch)
    owned: dict[str, list[doctor.OpenTask]] = {}
    for task in doctor.load_open_tasks(load_policy()):
        owner = find_owner(task.at)
        if owner is not None and owner.is_bounded:
            owned.setdefault(owner.rule, []).append(task)
    bounded = {owner.rule: owner for owner in TASK_OWNERS if owner.is_bounded}
    # No planted cell is LOST yet.
    assert set(owned) == set(bounded) - {"attempts_of_lost_cells"}
    timed = [rule for rule in owned if not bounded[rule].longest.startswith("checked")]
    assert [rule for rule in timed if any(task.due_at is None for task in owned[rule])] == []


def test_silent_shards_are_not_reported_while_convergence_is_down(well: Loop) -> None:
    InboxProbe.objects.update(delivered_until=ago(100))
    assert "inbox 0" in listed()
    TickState.objects.filter(name="convergence").update(finished_at=ago(100))
    found = listed()
    assert "tick convergence" in found
    assert not [subject for subject in found if subject.startswith("inbox")]
    assert not [item for item in found.values() if "in the next tick" in item["acts"]]


def many_callbacks(job: Job, hosts: int, **facts: Any) -> None:
    defaults = {"tries": 0, "due_at": ago(300), "give_up_at": ago(-90_000), "created_at": ago(300)}
    Callback.objects.bulk_create(
        Callback(
            job=job, task_id=number + 1, owner_id=1, url="http://x/", host=f"x{number}:80",
            **{**defaults, **facts},
        )
        for number in range(hosts)
    )  # fmt: skip


def test_waiting_callbacks_need_an_operator_only_if_none_is_tried(well: Loop) -> None:
    job = well.submit()
    many_callbacks(job, 1)
    assert listed()["callbacks to x0:80"]["needs_person"]
    assert listed()["callbacks to x0:80"]["what"] == "waiting for their first try"
    Callback.objects.create(
        job=job, task_id=99, owner_id=1, url="http://y/", host="y:80", state="claimed",
        claim="00000000-0000-4000-8000-000000000000", claimed_until=ago(-9), due_at=ago(9),
        give_up_at=ago(-900), created_at=ago(9),
    )  # fmt: skip
    assert not listed()["callbacks to x0:80"]["needs_person"]
    assert "behind 0 that are being tried" in listed()["callbacks to x0:80"]["acts"]


def test_only_ten_receivers_are_listed_separately(well: Loop) -> None:
    many_callbacks(well.submit(), 25)
    found = listed()
    assert len([subject for subject in found if subject.startswith("callbacks to")]) == 10
    assert found["callbacks"]["what"] == "waiting or given up, at 15 more receivers"


def test_callbacks_of_deleted_jobs_are_not_reported(well: Loop) -> None:
    job = well.submit()
    many_callbacks(job, 1, state="abandoned", ended_at=ago(5))
    assert "callbacks to x0:80" in listed()
    Job.objects.update(deleted_at=ago(5))
    assert run_doctor()[0] == 0


def test_callback_counts_are_capped_and_marked(well: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (unreachable, doctor):
        monkeypatch.setattr(module, "MOST_COUNTED", 3)
    job = well.submit()
    many_callbacks(job, 5, tries=1, is_tried=True, last_error="503")
    Callback.objects.update(host="x:80")
    found = listed()["callbacks to x:80"]
    assert (found["count"], found["what"]) == (
        3,
        "waiting, and more; 3 of them tried before, the last one: 503",
    )
    Callback.objects.filter(task_id__lte=2).update(state="abandoned", ended_at=ago(5))
    found = [
        item for item in json.loads(run_doctor("--json")[1]) if item["subject"].endswith("x:80")
    ]
    assert [item["what"] for item in found] == [
        "given up: 503",
        "waiting, and more; 3 of them tried before, the last one: 503",
    ]


def plant_waiting(job: Job, count: int, hosts: int) -> None:
    """Callbacks that wait, half of them tried, at so many receivers of three owners."""
    execute(
        """
        INSERT INTO controlplane_callback (job_id, task_id, owner_id, url, host, state, tries,
               is_tried, due_at, give_up_at, created_at, last_error)
        SELECT %s, n, n %% 3, 'http://x/', 'x' || n %% %s || ':80', 'waiting', n %% 2, n %% 2 = 1,
               now() - make_interval(secs => n), now() + interval '1 day', now(), ''
        FROM generate_series(1, %s) AS g (n)
        """,
        [job.pk, hosts, count],
    )
    execute("ANALYZE controlplane_callback")


def scanned(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows of callbacks each node of a plan read."""
    if plan.get("Relation Name") == "controlplane_callback":
        removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
        yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for inner in plan.get("Plans", ()):
        yield from scanned(inner)


@pytest.mark.parametrize("hosts", [1, 400])
def test_few_rows_are_read_however_many_callbacks_wait(well: Loop, hosts: int) -> None:
    plant_waiting(well.submit(), 20_000, hosts)
    with CaptureQueriesContext(connection) as captured:
        assert len([subject for subject in listed() if subject.startswith("callbacks to")]) == min(
            hosts, 10
        )
    statements = [query["sql"] for query in captured if "controlplane_callback" in query["sql"]]
    assert statements
    for statement in statements:
        [(plans,)] = rows("EXPLAIN (ANALYZE, FORMAT JSON) " + statement.replace("%", "%%"))
        assert sum(scanned(plans[0]["Plan"])) < 5_000, statement
