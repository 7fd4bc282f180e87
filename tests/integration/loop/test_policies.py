"""What operators set is in force from the next pass on: plugins, order, tokens, quotas."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.quotas import put_default_quota, put_quota
from controlplane.contract.states import TaskState
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import Attempt, Domain, Job, Pool, Project, Shape, Task
from controlplane.queries.views.quotas import get_quota
from controlplane.queries.views.tasks import get_task
from tests.integration.loop.conftest import Loop


def set_pool(**changes: Any) -> None:
    put_pool(name="default", changes=changes)


def set_quota(loop: Loop, kind: ScopeKind, **changes: Any) -> None:
    keys = {
        ScopeKind.USER: loop.owner.pk,
        ScopeKind.PROJECT: Project.objects.get().pk,
        ScopeKind.DOMAIN: Domain.objects.get().pk,
    }
    put_quota(scope=Scope(kind, keys[kind]), changes=changes)


def cells_of(loop: Loop, job: Job) -> list[str]:
    return [attempt.cell.name for attempt in loop.attempts(job)]


def reasons() -> set[str]:
    """The codes that placement left with what waits."""
    waiting = Task.objects.filter(state=TaskState.PENDING).values("shape_id")
    found = Shape.objects.filter(pk__in=waiting).values_list("pending_reason", flat=True)
    return {reason["code"] for reason in found if reason}


def test_changed_selector_applies_to_the_next_job(loop: Loop) -> None:
    for number in range(1, 4):
        loop.cell(f"cell-{number}")
    first = loop.submit(replicas=3)
    loop.place()
    assert sorted(cells_of(loop, first)) == ["cell-1", "cell-2", "cell-3"]
    set_pool(selector="concentrated")
    second = loop.submit(replicas=3)
    loop.place()
    assert cells_of(loop, second) == ["cell-1"] * 3


def test_changed_sequencer_applies_to_the_next_pass(loop: Loop) -> None:
    loop.cell(cpu=1000)
    older, newer = loop.submit(name="older"), loop.submit(name="newer")
    set_pool(sequencer="lifo")
    loop.place()
    assert (loop.states(older), loop.states(newer)) == (["PENDING"], ["ASSIGNED"])


def test_strict_queue_lets_no_job_overtake(loop: Loop) -> None:
    loop.cell(cpu=1000)
    running = loop.submit(resources={"cpu": 0.5, "memory": "64Mi"})
    loop.place()
    set_pool(strict_fifo=True)
    large = loop.submit(name="large", resources={"cpu": 1, "memory": "64Mi"})
    small = loop.submit(name="small", resources={"cpu": 0.1, "memory": "64Mi"})
    loop.place()
    assert [loop.states(job) for job in (running, large, small)] == [
        ["ASSIGNED"],
        ["PENDING"],
        ["PENDING"],
    ]
    set_pool(strict_fifo=False)
    loop.place()
    assert (loop.states(large), loop.states(small)) == (["PENDING"], ["ASSIGNED"])


def test_more_tokens_let_more_run(loop: Loop) -> None:
    loop.cell()
    set_pool(tokens={"licence": 1})
    job = loop.submit(replicas=3, resources={"cpu": 0.1, "memory": "64Mi", "licence": 1})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "PENDING", "PENDING"]
    set_pool(tokens={"licence": 2})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]


@pytest.mark.parametrize("kind", list(ScopeKind))
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ({"running_tasks": 1}, {"running_tasks": 3}),
        ({"resources": {"cpu_millis": 1500}}, {"resources": {"cpu_millis": 3000}}),
        ({"resources": {"memory_mib": 64}}, {"resources": {}}),
        ({"running_tasks": 1}, {"running_tasks": None}),
    ],
)
def test_a_wider_quota_lets_more_run(
    loop: Loop, kind: ScopeKind, narrow: dict[str, Any], wide: dict[str, Any]
) -> None:
    loop.cell()
    set_quota(loop, kind, **narrow)
    job = loop.submit(replicas=3)
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "PENDING", "PENDING"]
    assert reasons() == {"quota_exceeded"}
    set_quota(loop, kind, **wide)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 3


@pytest.mark.parametrize("kind", list(ScopeKind))
@pytest.mark.parametrize("limits", [{"running_tasks": 1}, {"resources": {"cpu_millis": 1500}}])
def test_default_quota_limits_a_scope_without_one_and_is_named(
    loop: Loop, kind: ScopeKind, limits: dict[str, Any]
) -> None:
    loop.cell()
    put_default_quota(kind=kind, changes=limits)
    job = loop.submit(replicas=3)
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "PENDING", "PENDING"]
    [pending, _] = Task.objects.filter(job=job, state=TaskState.PENDING)
    reason = get_task(pending.pk, now=clock.now())["pending_reason"]
    assert reason["code"] == "quota_exceeded"
    assert reason["text"].startswith(f"default quota of {kind} ")
    set_quota(loop, kind, running_tasks=2, resources={})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    put_default_quota(kind=kind, changes=dict.fromkeys(limits) | {"resources": {}})
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]


def test_fair_projects_share_the_pool_and_count_running_tasks(loop: Loop) -> None:
    set_pool(sequencer="fair_projects", max_building_per_cell=None)
    Project.objects.create(domain=Domain.objects.get(), name="other")
    loop.cell("cell-1", cpu=2000)
    first = [loop.submit(replicas=8, project="default") for _ in range(2)]
    loop.place()
    second = loop.submit(replicas=8, project="other")
    loop.cell("cell-2", cpu=4000)
    loop.place()
    held = [sum(state == "ASSIGNED" for state in loop.states(job)) for job in (*first, second)]
    # Two tasks of the first project ran already: each project holds three now.
    assert (held[0] + held[1], held[2]) == (3, 3)


def test_default_quota_limits_each_user_alone(loop: Loop) -> None:
    loop.cell()
    put_default_quota(kind=ScopeKind.USER, changes={"running_tasks": 1})
    other, _ = create_user(name="other", password=None, is_operator=False)
    jobs = [loop.submit(replicas=2), replace(loop, owner=other).submit(replicas=2)]
    loop.place()
    assert [sorted(loop.states(job)) for job in jobs] == [["ASSIGNED", "PENDING"]] * 2


def test_shown_quota_usage_matches_the_blocking_usage(loop: Loop) -> None:
    loop.cell()
    set_quota(loop, ScopeKind.USER, running_jobs=1)
    loop.submit(name="first", replicas=2)
    loop.submit(name="second")
    loop.place()
    shown = get_quota(ScopeKind.USER, loop.owner.username)
    assert shown["usage"] == {
        "resources": {"cpu": 2.0, "memory_mib": 128},
        "running_tasks": 2,
        "running_jobs": 1,
        "pending_tasks": 1,
        "stored_bytes": None,
    }
    assert Attempt.objects.count() == 2
    assert reasons() == {"quota_exceeded"}


def test_concurrent_operator_changes_do_not_conflict(loop: Loop) -> None:
    scope = Scope(ScopeKind.USER, loop.owner.pk)
    limits = [{"running_tasks": limit} for limit in (1, None, 2, None)]

    def set_often(change: dict[str, Any]) -> None:
        try:
            for number in range(10):
                put_quota(scope=scope, changes=change)
                put_pool(name=f"pool-{number}", changes={"starvation_seconds": 7})
        finally:
            connection.close()

    with ThreadPoolExecutor(len(limits)) as threads:
        list(threads.map(set_often, limits))
    put_quota(scope=scope, changes={"running_tasks": None})
    assert get_quota(ScopeKind.USER, loop.owner.username)["running_tasks"] is None
    assert Pool.objects.filter(starvation_seconds=7).count() == 10
