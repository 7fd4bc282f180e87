"""Growth of resources by retry rules in the loop: placement, orders, usage and history count it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.commands.jobs.move import move_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.state.shapes import insert_grown_shapes
from controlplane.contract.messages.orders import GroupSpec, Orders, Sync
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.cycle.prefilter import PrefilterResult
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Band
from controlplane.domain.state.task_changes import keep_task
from controlplane.models import (
    Attempt,
    Cell,
    Job,
    Pool,
    Project,
    Quota,
    Shape,
    Task,
    TaskGroup,
    Transition,
    UsageTotal,
)
from controlplane.queries.cells.capacity import load_reserved, load_usage
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.jobs.growth_room import with_growth_room
from controlplane.queries.pages.queue import list_queue
from controlplane.queries.pages.work import find_oldest_waiting
from controlplane.queries.placement.snapshot import (
    load_pass_facts,
    load_snapshot,
    load_waiting_shapes,
    policy_of,
)
from controlplane.queries.task_facts import load_facts_of_tasks
from controlplane.queries.views.attempts import get_attempt
from controlplane.queries.views.queue_position import find_queue_place
from controlplane.queries.views.tasks import get_task
from controlplane.spec import parse_job
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.test_retry_rules import place_again

TWICE: dict[str, Any] = {"reason": "oom", "do": "retry", "resources": {"memory": "2x"}}


def growing(loop: Loop, rule: dict[str, Any] | None = None, **more: Any) -> Job:
    """Submit a job whose request of 512 MiB doubles after each OOM, within five retries."""
    more.setdefault("retries", {"failure": 5})
    own = {"cpu": 0.5, "memory": "512Mi"}
    return loop.submit(on_exit=[{**TWICE, **(rule or {})}], resources=own, **more)


def runs_out_of_memory(cell: FakeCell, attempt: Attempt) -> None:
    facts: dict[str, Any] = {"exit_code": 137, "failure_kind": "user", "reason": "oom"}
    cell.end(attempt, S.FAILED, message="out of memory", **facts)


def requests(job: Job) -> list[dict[str, int] | None]:
    found = Attempt.objects.filter(job=job).order_by("task_id", "number")
    return [attempt.resources for attempt in found]


def used(cell: FakeCell) -> dict[str, int]:
    cell_id = Cell.objects.get(name=cell.name).pk
    return load_usage([cell_id]).get(cell_id, {})


def specs_of(cell: FakeCell) -> dict[str, GroupSpec]:
    """Return the definition that each ordered attempt was sent with."""
    found = {}
    for order in cell.orders():
        orders = order.orders if isinstance(order, Sync) else order
        if isinstance(orders, Orders):
            specs = {spec.id: spec for spec in orders.specs}
            found |= {run.uid: specs[run.spec_id] for run in orders.runs}
    return found


def test_each_retry_is_placed_with_more(loop: Loop) -> None:
    cell = loop.cell(memory=4096)
    job = growing(loop)
    for memory in (512, 1024, 2048):
        attempt = place_again(loop, job)
        assert used(cell) == {"cpu_millis": 500, "memory_mib": memory}
        assert check_all() == []
        runs_out_of_memory(cell, attempt)
    attempt = place_again(loop, job)
    assert used(cell)["memory_mib"] == 4096
    assert requests(job) == [
        None,
        *({"cpu_millis": 500, "memory_mib": memory} for memory in (1024, 2048, 4096)),
    ]
    sent = specs_of(cell)
    assert [sent[str(a.uid)].resources["memory_mib"] for a in loop.attempts(job)] == [
        512,
        1024,
        2048,
        4096,
    ]
    messages = Transition.objects.filter(job_id=job.pk, message__contains="on_exit").order_by("id")
    assert [row.message for row in messages] == [
        f"out of memory: rule 1 of on_exit retries the task: memory {change}"
        for change in ("512Mi -> 1Gi", "1Gi -> 2Gi", "2Gi -> 4Gi")
    ]


def test_a_lost_order_is_sent_again_with_the_grown_request(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = loop.cell()
    job = growing(loop, replicas=2)
    loop.place()
    first, other = loop.attempts(job)
    runs_out_of_memory(cell, first)
    grown = place_again(loop, job)
    Attempt.objects.update(created_at=grown.created_at - (grown.start_before - grown.created_at))
    loop.wire.sent.clear()
    cell.beat()
    sent = specs_of(cell)
    assert sent[str(grown.uid)].resources["memory_mib"] == 1024
    assert sent[str(other.uid)].resources["memory_mib"] == 512
    assert len({spec.id for spec in sent.values()}) == 2


def test_siblings_keep_the_request_of_their_group(loop: Loop) -> None:
    cell = loop.cell(memory=2048)
    job = growing(loop, replicas=3)
    loop.place()
    first, *_ = loop.attempts(job)
    runs_out_of_memory(cell, first)
    place_again(loop, job)
    assert used(cell) == {"cpu_millis": 1500, "memory_mib": 2048}
    assert check_all() == []


def test_a_request_that_never_fits_fails_the_task_with_its_reason(loop: Loop) -> None:
    cell = loop.cell(memory=1500)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    runs_out_of_memory(cell, place_again(loop, job))
    assert (loop.states(job), loop.state(job)) == (["FAILED"], "FAILED")
    assert Task.objects.get(job=job).failure_reason == (
        "out of memory (not retried: rule 1 of on_exit increases memory to 2Gi, and no cell of"
        " pool default that may run the task has more than 1500Mi; max_resources of the rule"
        " bounds its growth)"
    )
    assert check_all() == []


def test_a_maximum_bounds_growth_and_the_task_is_retried_there(loop: Loop) -> None:
    cell = loop.cell(memory=1500)
    job = growing(loop, {"max_resources": {"memory": "1200Mi"}}, retries={"failure": 3})
    for _ in range(4):
        runs_out_of_memory(cell, place_again(loop, job))
    found = [item and item["memory_mib"] for item in requests(job)]
    assert (found, loop.states(job)) == ([None, 1024, 1200, 1200], ["FAILED"])


def test_a_job_that_allows_unsatisfiable_requests_waits_with_the_grown_figure(loop: Loop) -> None:
    cell = loop.cell(memory=1000)
    job = growing(loop, allow_unsatisfiable=True)
    runs_out_of_memory(cell, place_again(loop, job))
    assert loop.states(job) == ["PENDING"]
    Task.objects.filter(job=job).update(not_before=None)
    loop.place()
    reason = get_task(loop.tasks(job)[0].pk, now=clock.now())["pending_reason"]
    assert "1024 MiB of memory" in reason["text"]
    loop.cell("larger", memory=1024)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]


def test_a_task_that_has_grown_is_among_the_oldest_waiting(loop: Loop) -> None:
    cell = loop.cell(memory=1200)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    later = clock.now() + timedelta(days=1)
    assert list(find_oldest_waiting(5, now=later)) == [task.pk for task in loop.tasks(job)]


def test_tasks_of_a_group_that_have_grown_have_places_of_their_own(loop: Loop) -> None:
    cell = loop.cell(memory=1536)
    job = growing(loop, replicas=3)
    loop.place()
    first, second, third = loop.attempts(job)
    runs_out_of_memory(cell, second)
    for attempt in (first, third):
        cell.end(attempt, S.PREEMPTED, exit_code=143, reason="drained")
    Task.objects.filter(job=job).update(not_before=None)
    tasks = Task.objects.filter(job=job).order_by("index")
    found = [find_queue_place(task.pk, now=clock.now()) for task in tasks]
    assert [place and (place.position, place.of) for place in found] == [(1, 3), (2, 3), (3, 3)]


def test_queue_has_the_reason_of_a_task_that_has_grown(loop: Loop) -> None:
    cell = loop.cell(memory=1200)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    loop.submit(resources={"cpu": 0.5, "memory": "300Mi"})
    loop.place()
    Task.objects.filter(job=job).update(not_before=None)
    loop.place()
    [entry] = list_queue(Pool.objects.get(), readable=None, after=None, limit=9, now=clock.now())
    assert (entry["job"], entry["waiting"]) == (job.pk, 1)
    assert "1024 MiB of memory" in entry["reason"]["text"]


def test_larger_cells_of_other_kinds_do_not_count(loop: Loop) -> None:
    cell = loop.cell(memory=1000)
    loop.cell("larger", memory=8192)
    Cell.objects.filter(name="larger").update(tags=["secret"])
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    assert loop.states(job) == ["FAILED"]


def test_eviction_loss_and_system_failure_keep_the_grown_request(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    evicted = place_again(loop, job)
    cell.end(evicted, S.PREEMPTED, exit_code=143, reason="drained")
    broken = place_again(loop, job)
    cell.end(broken, S.FAILED, failure_kind="system", reason="engine")
    lost = place_again(loop, job)
    cell.end(lost, S.WORKER_FAILED, reason="vanished")
    place_again(loop, job)
    assert [item and item["memory_mib"] for item in requests(job)] == [None, *[1024] * 4]
    assert used(cell)["memory_mib"] == 1024
    assert check_all() == []


def test_a_retry_of_the_job_starts_with_the_request_of_its_document(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop, retries={"failure": 1})
    for _ in range(2):
        runs_out_of_memory(cell, place_again(loop, job))
    assert loop.states(job) == ["FAILED"]
    done = retry_job(job_id=job.pk, guid=None, actor="owner", now=clock.now())
    again = Job.objects.get(pk=done.job_id)
    place_again(loop, again)
    assert requests(again) == [None]
    assert used(cell)["memory_mib"] == 512


def test_documents_show_the_request(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop)
    first = place_again(loop, job)
    task = loop.tasks(job)[0].pk
    assert get_task(task, now=clock.now())["resources"] == {"cpu": 0.5, "memory_mib": 512}
    runs_out_of_memory(cell, first)
    assert get_task(task, now=clock.now())["resources"] == {"cpu": 0.5, "memory_mib": 1024}
    second = place_again(loop, job)
    assert get_attempt(first.uid)["resources"] == {"cpu": 0.5, "memory_mib": 512}
    assert get_attempt(second.uid)["resources"] == {"cpu": 0.5, "memory_mib": 1024}


def test_a_moved_job_keeps_grown_requests(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop, replicas=2)
    loop.place()
    runs_out_of_memory(cell, loop.attempts(job)[0])
    role = Role.OPERATOR
    move_job(job_id=job.pk, band=Band.BATCH, role=role, actor="o", now=clock.now())
    shapes = Shape.objects.filter(pk__in=Task.objects.filter(job=job).values("shape_id"))
    assert {(shape.band, shape.resources["memory_mib"]) for shape in shapes} == {
        (Band.BATCH, 512),
        (Band.BATCH, 1024),
    }
    place_again(loop, job)
    assert used(cell)["memory_mib"] == 1536


def test_a_preemptor_that_has_grown_gets_room_for_its_request(loop: Loop) -> None:
    cell = loop.cell(memory=1024)
    job = growing(loop, replicas=2, band="production")
    loop.place()
    first, second = loop.attempts(job)
    cell.end(second, S.SUCCEEDED, exit_code=0)
    runs_out_of_memory(cell, first)
    low = loop.submit(band="batch", resources={"cpu": 0.5, "memory": "300Mi"}, replicas=3)
    loop.place()
    for attempt in loop.attempts(low):
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=1.0))
    assert loop.states(low) == ["RUNNING"] * 3
    Task.objects.filter(pk=first.task_id).update(not_before=None)
    loop.place()
    cells = Cell.objects.values_list("pk", flat=True)
    assert Task.objects.get(pk=first.task_id).nominated_cell_id in cells
    kept = load_reserved(list(cells), now=clock.now())
    assert [found["memory_mib"] for found in kept.values()] == [1024]
    assert loop.states(low) == ["PENDING"] * 3
    for attempt in loop.attempts(low):
        cell.end(attempt, S.PREEMPTED)
    loop.place()
    assert Task.objects.get(pk=first.task_id).state == S.ASSIGNED
    assert used(cell)["memory_mib"] == 1024
    assert check_all() == []


def test_a_pass_has_both_requests_of_a_group_without_room(loop: Loop) -> None:
    cell = loop.cell(memory=1536)
    job = growing(loop, replicas=2, band="production")
    loop.place()
    first, second = loop.attempts(job)
    runs_out_of_memory(cell, first)
    cell.end(second, S.PREEMPTED, exit_code=143, reason="drained")
    tasks = Task.objects.filter(job=job)
    tasks.update(not_before=clock.now() + timedelta(hours=1))
    loop.submit(band="batch", resources={"cpu": 0.5, "memory": "512Mi"}, replicas=3)
    loop.place()
    tasks.update(not_before=None, avoid_cell_ids=None, prefer_cell_id=None)
    now, pool = clock.now(), Pool.objects.get()
    [waiting] = load_waiting_shapes(now)
    snapshot = load_snapshot(
        pool.pk, pool.name, policy_of(pool), waiting.shapes, now=now, with_owners=False
    )
    without_room = frozenset(shape.shape_id for shape in waiting.shapes)
    screened = PrefilterResult(frozenset(), without_room, ())
    facts = load_pass_facts(snapshot, screened, by_owner=False)
    assert len(without_room) == 2
    assert sorted(facts.waiting.shape_ids) == sorted(without_room)
    assert list(facts.waiting.counts) == [1, 1]


def test_a_starving_task_reserves_its_grown_request(loop: Loop) -> None:
    cell = loop.cell(memory=1024)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    other = loop.submit(resources={"cpu": 0.5, "memory": "300Mi"})
    loop.place()
    Pool.objects.update(starvation_seconds=1)
    long_ago = clock.now() - timedelta(hours=1)
    Task.objects.filter(job=job).update(not_before=None, updated_at=long_ago)
    TaskGroup.objects.filter(job=job).update(startable_at=long_ago)
    Job.objects.filter(pk=job.pk).update(created_at=long_ago)
    loop.place()
    assert loop.states(other) == ["ASSIGNED"]
    assert Task.objects.get(job=job).nominated_cell_id is not None
    later = loop.submit(resources={"cpu": 0.5, "memory": "300Mi"})
    loop.place()
    assert loop.states(later) == ["PENDING"]


def set_quota(memory: int) -> None:
    Quota.objects.create(project=Project.objects.get(), resources={"memory_mib": memory})


def test_quotas_count_the_grown_request(loop: Loop) -> None:
    cell = loop.cell()
    set_quota(1200)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    place_again(loop, job)
    other = loop.submit(resources={"cpu": 0.5, "memory": "200Mi"})
    loop.place()
    assert loop.states(other) == ["PENDING"]
    reason = get_task(loop.tasks(other)[0].pk, now=clock.now())["pending_reason"]
    assert "1024 MiB of memory used + 200 MiB of memory requested" in reason["text"]


def test_a_request_above_the_quota_fails_the_task(loop: Loop) -> None:
    cell = loop.cell()
    set_quota(1000)
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    assert loop.states(job) == ["FAILED"]
    text = "increases memory to 1Gi, and the quota of project default/default has 1000Mi"
    assert text in Task.objects.get(job=job).failure_reason


def test_a_quota_that_the_pool_does_not_enforce_bounds_no_growth(loop: Loop) -> None:
    cell = loop.cell()
    set_quota(1000)
    Pool.objects.update(validators=[])
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    place_again(loop, job)
    assert loop.states(job) == ["ASSIGNED"]


def test_totals_of_usage_count_the_request_of_each_attempt(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    cell.end(place_again(loop, job), S.SUCCEEDED, exit_code=0)
    began = datetime(2031, 5, 4, 12, tzinfo=UTC)
    ended = began + timedelta(seconds=100)
    Attempt.objects.update(created_at=began, finished_at=ended, released_at=ended)
    Job.objects.filter(settled_at=None).update(settled_at=clock.now())
    loop.converge()
    assert UsageTotal.objects.get().memory_mib_seconds_requested == (512 + 1024) * 100


def test_fair_shares_count_the_grown_request(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    place_again(loop, job)
    pool = Pool.objects.get()
    snapshot = load_snapshot(
        pool.pk, pool.name, policy_of(pool), (), now=clock.now(), with_owners=True
    )
    assert [use["memory_mib"] for use in snapshot.owner_usage.values()] == [1024]


def test_tokens_of_the_pool_bound_no_growth(loop: Loop) -> None:
    cell = loop.cell(memory=4096)
    Pool.objects.update(tokens={"licence": 2})
    own = {"cpu": 0.5, "memory": "512Mi", "licence": 1}
    body = {
        "name": "a",
        "image": "x",
        "resources": own,
        "retries": {"failure": 2},
        "on_exit": [TWICE],
    }
    found = dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())
    assert [request["memory_mib"] for request in found.growth[0].requests] == [1024, 2048]
    job = loop.submit(**{name: body[name] for name in ("resources", "retries", "on_exit")})
    runs_out_of_memory(cell, place_again(loop, job))
    place_again(loop, job)
    assert loop.states(job) == ["ASSIGNED"]
    assert requests(job) == [None, {"cpu_millis": 500, "memory_mib": 1024, "licence": 1}]
    assert check_all() == []


@pytest.mark.parametrize(
    ("increase", "more", "requests", "refusal"),
    [
        ({"memory": "2x"}, {}, [1024, 2048], "increases memory to 4Gi"),
        ({"memory": "2x"}, {"retries": {"failure": 1}}, [1024], ""),
        ({"memory": "2Gi"}, {}, [2048], ""),
        ({"memory": "8Gi"}, {}, [], "no cell of pool default that may run the task has more than"),
        ({"memory": "16x"}, {"allow_unsatisfiable": True}, [8192, 131072], ""),
    ],
)
def test_a_dry_run_lists_the_requests_of_the_retries(
    loop: Loop, increase: dict[str, str], more: dict[str, Any], requests: list[int], refusal: str
) -> None:
    loop.cell(memory=3000)
    loop.cell("other", memory=9000)
    Cell.objects.filter(name="other").update(tags=["secret"])
    body = {
        "name": "a",
        "image": "x",
        "resources": {"cpu": 0.5, "memory": "512Mi"},
        "retries": {"failure": 2} if "allow_unsatisfiable" in more else {"failure": 5},
        "on_exit": [{"codes": [3], "do": "fail"}, {**TWICE, "resources": increase}],
        **more,
    }
    found = dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())
    [growth] = found.growth
    assert (growth.group, growth.rule) == ("main", 2)
    assert [request["memory_mib"] for request in growth.requests] == requests
    assert {request["cpu"] for request in growth.requests} <= {0.5}
    assert refusal in growth.refusal
    assert bool(refusal) == bool(growth.refusal)


def test_a_cell_that_is_overcommitted_by_growth_is_found(loop: Loop) -> None:
    cell = loop.cell(memory=1024)
    job = growing(loop)
    place_again(loop, job)
    assert check_all() == []
    Attempt.objects.filter(job=job).update(resources={"cpu_millis": 500, "memory_mib": 2048})
    [found] = check_all()
    assert "memory_mib" in str(found)
    assert used(cell)["memory_mib"] == 2048


@pytest.mark.parametrize("damaged", [[], "many", {"memory_mib": "many"}])
def test_a_damaged_request_stops_no_report(loop: Loop, damaged: object) -> None:
    cell = loop.cell()
    job = growing(loop)
    attempt = place_again(loop, job)
    TaskGroup.objects.filter(job=job).update(resources=damaged)
    runs_out_of_memory(cell, attempt)
    assert loop.states(job) == ["PENDING"]


def test_tasks_without_growth_cost_no_further_statement(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(on_exit=[{"codes": [75], "do": "retry"}], retries={"failure": 1})
    loop.place()
    [facts] = load_facts_of_tasks([task.pk for task in loop.tasks(job)])
    now = clock.now()
    with CaptureQueriesContext(connection) as captured:
        assert with_growth_room([facts]) == {}
        assert insert_grown_shapes([keep_task(facts, now=now)]) == {}
    assert captured.captured_queries == []
    assert cell.name == "cell-1"


def test_the_group_keeps_its_request(loop: Loop) -> None:
    cell = loop.cell()
    job = growing(loop)
    runs_out_of_memory(cell, place_again(loop, job))
    group = TaskGroup.objects.get(job=job)
    assert group.resources == {"cpu_millis": 500, "memory_mib": 512}
    assert group.retry_rules == [
        {
            "do": "retry",
            "reason": "out_of_memory",
            "resources": {"memory_mib": {"percent": 200}},
        }
    ]
