"""Four workers of placement at once, and everybody else: nothing is given twice, or beyond a limit.

On one pool and on four, with the lock that lets one worker decide at a time and without it, which
is how it must hold anyway. How much they do is counted in rounds, not in seconds.
"""

import os
import random
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.tenancy.accounts import create_user
from controlplane.domain.jobs.concurrency import ConcurrencyKeyFull
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.inbox.batches import Inbox
from controlplane.models import Attempt, Cell, Pool, Project, Quota, TickState
from controlplane.outbox import transport
from controlplane.queries.sql import rows
from controlplane.spec import parse_job
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.crowd import (
    Crowd,
    Work,
    cascade,
    check,
    heal,
    place,
    report_progress,
    retries_counted,
    stop,
    tick,
)
from tests.integration.loop.test_races import DOUBLED, Nowhere

BASE = int(os.environ["SIMULATION_BASE"])
WORKERS = 4
# Rounds: about 10 s of a test, and 5 minutes of the long suite.
IN_TEST, IN_SOAK = 100, 3_000
NAMES = ("default", "second", "third", "fourth")
# By number of pools: so little of each cell that bands compete for it.
CPU = {1: 6000, 4: 1000}
TOKENS, FPGAS = 3, 2
KEYED = 4
USER_CPU, USER_TASKS, USER_JOBS, PROJECT_TASKS = 5000, 7, 3, 14

pytestmark = pytest.mark.serial

_HELD = """
    SELECT a.cell_id, c.pool_id, j.owner_id, j.project_id, a.job_id, r.key AS name,
           r.value::bigint AS amount
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_job j ON j.id = a.job_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id, jsonb_each_text(g.resources) r
    WHERE a.released_at IS NULL
"""
BEYOND = {
    "a cell": f"""
        SELECT c.name, h.name, sum(h.amount) FROM ({_HELD}) h
        JOIN controlplane_cell c ON c.id = h.cell_id JOIN controlplane_pool p ON p.id = c.pool_id
        WHERE NOT p.tokens ? h.name GROUP BY c.id, h.name
        HAVING sum(h.amount) > coalesce((c.capacity->>h.name)::bigint, 0)
    """,
    "a pool's tokens": f"""
        SELECT p.name, h.name, sum(h.amount) FROM ({_HELD}) h
        JOIN controlplane_pool p ON p.id = h.pool_id AND p.tokens ? h.name
        GROUP BY p.id, h.name HAVING sum(h.amount) > (p.tokens->>h.name)::bigint
    """,
    "a quota's resources": f"""
        SELECT q.id, h.name, sum(h.amount) FROM ({_HELD}) h
        JOIN controlplane_quota q ON q.user_id = h.owner_id OR q.project_id = h.project_id
        WHERE q.resources ? h.name
        GROUP BY q.id, h.name HAVING sum(h.amount) > (q.resources->>h.name)::bigint
    """,
    "a quota's tasks or jobs": """
        SELECT q.id, count(*), count(DISTINCT a.job_id) FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id
        JOIN controlplane_quota q ON q.user_id = j.owner_id OR q.project_id = j.project_id
        WHERE a.released_at IS NULL GROUP BY q.id
        HAVING count(*) > q.running_tasks OR count(DISTINCT a.job_id) > q.running_jobs
    """,
    "a concurrency key": f"""
        SELECT j.concurrency_id, count(*) FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id AND j.concurrency_id IS NOT NULL
        WHERE a.released_at IS NULL GROUP BY 1 HAVING count(*) > {KEYED}
    """,
    "a task, which has one place": DOUBLED,
    "a pool, which has its own cells": """
        SELECT a.uid FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        JOIN controlplane_cell c ON c.id = a.cell_id WHERE c.pool_id <> j.pool_id
    """,
}


def check_limits(dice: object) -> None:
    """At any moment."""
    for what, statement in BEYOND.items():
        found = rows(statement)
        assert not found, f"more than {what}: {found}"


def submit_contenders(owners: list[User], pools: list[str]) -> Work:
    """Return work that submits contending jobs."""

    def submit(dice: random.Random) -> None:
        replicas = dice.randint(1, 5)
        body: dict[str, Any] = {
            "name": "job",
            "image": "x",
            "command": ["true"],
            "pool": dice.choice(pools),
            "replicas": replicas,
            "band": dice.choice(["production", "interactive", "batch", "batch"]),
            "retries": {"failure": 1, "preemption": dice.choice([1, 100])},
            "coscheduled": dice.random() < 0.3,
            "resources": {"cpu": dice.choice([0.5, 1, 2]), "memory": "64Mi"},
        }
        if body["coscheduled"]:
            # So that it fits the smallest pool when that is empty: a larger one never starts.
            body["min_available"] = dice.randint(1, min(replicas, TOKENS))
            body["resources"]["cpu"] = 0.5
        if dice.random() < 0.4:
            body["resources"][dice.choice(["licence", "fpga"])] = 1
        if dice.random() < 0.4:
            policy = dice.choice(["wait", "wait", "reject", "replace"])
            body["concurrency"] = {"key": "shared", "limit": KEYED, "on_conflict": policy}
        # Larger than every cell or a quota, or its key is full.
        with suppress(JobsRefused, ConcurrencyKeyFull):
            owner = dice.choice(owners)
            now = clock.now()
            submit_jobs(specs=[parse_job(body)], bodies=[body], owner=owner, now=now)

    return submit


def scene(loop: Loop, count: int) -> tuple[list[User], list[FakeCell]]:
    """So many pools, each with tokens and two cells; two users, one with a quota."""
    owners = [loop.owner, create_user(name="limited", password=None, is_operator=False)[0]]
    cells = []
    for name in NAMES[:count]:
        pool, _ = Pool.objects.get_or_create(name=name)
        Pool.objects.filter(pk=pool.pk).update(tokens={"licence": TOKENS})
        for number in range(2):
            own = Loop(loop.owner, loop.wire, Inbox(sync_seconds=0.0))
            fake_cell = own.cell(f"{name}-{number}", cpu=CPU[count])
            Cell.objects.filter(name=fake_cell.name).update(pool=pool)
            cells.append(fake_cell)
    for cell in Cell.objects.all():
        Cell.objects.filter(pk=cell.pk).update(capacity={**cell.capacity, "fpga": FPGAS})
    Quota.objects.create(
        user=owners[1],
        resources={"cpu_millis": USER_CPU},
        running_tasks=USER_TASKS,
        running_jobs=USER_JOBS,
        highest_band="production",
    )
    Quota.objects.create(
        project=Project.objects.get(), running_tasks=PROJECT_TASKS, highest_band="production"
    )
    TickState.objects.get_or_create(name="convergence")
    tick(None)  # type: ignore[arg-type]
    transport.use(Nowhere())
    return owners, cells


def play(loop: Loop, seed: int, pools: int, rounds: int) -> None:
    """All of them at once; then all of it ends well."""
    owners, cells = scene(loop, pools)
    crowd = Crowd(seed)
    submit = submit_contenders(owners, list(NAMES[:pools]))
    crowd.add(
        *[place] * WORKERS,
        cascade,
        submit,
        submit,
        stop,
        check_limits,
        *map(report_progress, cells),
    )
    with retries_counted() as retried:
        crowd.run(rounds)
    attempts = Attempt.objects.count()
    evicted = Attempt.objects.filter(state=10).count()
    summary = f"{pools} pools, {rounds} rounds: {attempts} attempts, {evicted} evicted"
    print(f"seed {seed}: {summary}, again: {dict(retried)}")
    check_limits(None)
    check(settled=False)
    assert attempts > rounds
    heal(cells)
    check(settled=True)


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("pools", [1, 4])
def test_four_workers_place_within_every_limit(
    loop: Loop, settings: Any, pools: int, locks: bool
) -> None:
    settings.CELLRUN = django_settings.CELLRUN.model_copy(update={"advisory_locks": locks})
    play(loop, BASE, pools, IN_TEST)


@pytest.mark.soak
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("pools", [1, 4])
def test_four_workers_place_within_every_limit_in_a_long_run(
    loop: Loop, settings: Any, pools: int, locks: bool
) -> None:
    settings.CELLRUN = django_settings.CELLRUN.model_copy(update={"advisory_locks": locks})
    play(loop, BASE + 1, pools, IN_SOAK)
