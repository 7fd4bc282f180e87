"""What is read of quotas: their limits, and what is held of them, counted from the rows."""

import uuid
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.contract.states import TaskState
from controlplane.domain.scopes import Scope, ScopeKind, ScopeLimits
from controlplane.models import (
    Attempt,
    Cell,
    Domain,
    Job,
    Pool,
    Project,
    Quota,
    Task,
    TaskGroup,
)
from controlplane.queries.placement.quotas import load_quotas, load_scope_usage

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)

pytestmark = pytest.mark.django_db


class World:
    """Two users, two projects of one domain and one of another, two pools with a cell each."""

    def __init__(self) -> None:
        self.home, self.away = (Domain.objects.create(name=name) for name in ("home", "away"))
        self.red = Project.objects.create(domain=self.home, name="red")
        self.blue = Project.objects.create(domain=self.home, name="blue")
        self.far = Project.objects.create(domain=self.away, name="red")
        self.ann, self.bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        self.pools = [Pool.objects.create(name=name) for name in ("a", "b")]
        self.cells = [
            Cell.objects.create(name=f"cell-{pool}", pool=pool, enrolled_at=NOW, key_salt="5a17")
            for pool in self.pools
        ]

    def job(self, owner: User, project: Project, *, pool: int = 0, held: int, gone: int = 0) -> Job:
        """A job of one group: `held` tasks hold what they request, `gone` ones were released."""
        job = Job.objects.create(
            project=project,
            owner=owner,
            pool=self.pools[pool],
            name="job",
            min_available=held + gone,
            spec={},
            spec_digest="0" * 64,
            created_at=NOW,
        )
        group = TaskGroup.objects.create(
            job=job,
            name="main",
            position=0,
            replicas=held + gone,
            task_count=held + gone,
            min_available=held + gone,
            counts=[0] * (max(TaskState) + 1),
            resources={"cpu_millis": 500, "memory_mib": 64, "licence": 1},
            task_type="process",
            shape_id=1,
            launch={},
        )
        for index in range(held + gone):
            self._attempt(group, index, released=index >= held, pool=pool)
        return job

    def _attempt(self, group: TaskGroup, index: int, *, released: bool, pool: int) -> None:
        # A victim has ended and still holds its place: what counts is the release alone.
        ended = released or index % 2 == 1
        task = Task.objects.create(
            job_id=group.job_id,
            group=group,
            shape_id=1,
            index=index,
            state=TaskState.KILLED if ended else TaskState.RUNNING,
            attempt_open=not released,
            finished_at=NOW if ended else None,
            updated_at=NOW,
        )
        Attempt.objects.create(
            uid=uuid.uuid4(),
            task=task,
            group=group,
            job_id=group.job_id,
            cell=self.cells[pool],
            incarnation="i",
            number=1,
            state=TaskState.KILLED if ended else TaskState.RUNNING,
            start_before=NOW,
            created_at=NOW,
            state_since=NOW,
            finished_at=NOW if ended else None,
            released_at=NOW if released else None,
            release_kind="confirmed" if released else "",
        )


@pytest.fixture
def world() -> World:
    """The world of these tests."""
    return World()


def user(owner: User) -> Scope:
    return Scope(ScopeKind.USER, owner.pk)


def project(which: Project) -> Scope:
    return Scope(ScopeKind.PROJECT, which.pk)


def domain(which: Domain) -> Scope:
    return Scope(ScopeKind.DOMAIN, which.pk)


def test_scopes_without_a_quota_take_one_statement(world: World) -> None:
    world.job(world.ann, world.red, held=1)
    with CaptureQueriesContext(connection) as statements:
        assert load_quotas([user(world.ann), project(world.red), domain(world.home)]) == ()
    assert len(statements) == 1
    with CaptureQueriesContext(connection) as statements:
        assert load_quotas([]) == ()
    assert len(statements) == 0


def test_usage_sums_unreleased_attempts_of_all_pools(world: World) -> None:
    world.job(world.ann, world.red, held=2, gone=3)
    world.job(world.ann, world.red, held=1, pool=1)
    world.job(world.ann, world.blue, held=1)
    world.job(world.bob, world.red, held=4)
    world.job(world.bob, world.far, held=1)
    for scope in ({"user": world.ann}, {"project": world.red}, {"domain": world.home}):
        Quota.objects.create(resources={"cpu_millis": 10_000}, running_tasks=7, **scope)
    scopes = [domain(world.home), project(world.red), user(world.ann), user(world.bob)]
    with CaptureQueriesContext(connection) as statements:
        found = {quota.scope: quota for quota in load_quotas(scopes)}
    assert len(statements) == 2
    assert set(found) == set(scopes[:3])
    assert {quota.title: quota.running_tasks for quota in found.values()} == {
        "user ann": 4,
        "project home/red": 7,
        "domain home": 8,
    }
    ann = found[user(world.ann)]
    assert ann.resources == {"cpu_millis": 2_000, "memory_mib": 256, "licence": 4}
    assert ann.limits == ScopeLimits({"cpu_millis": 10_000}, running_tasks=7)
    assert ann.jobs == frozenset()


def test_jobs_are_read_only_for_quotas_that_limit_them(world: World) -> None:
    first = world.job(world.ann, world.red, held=2)
    second = world.job(world.ann, world.blue, held=1)
    world.job(world.ann, world.blue, held=0, gone=2)
    Attempt.objects.filter(job=second).update(state=TaskState.KILLED, finished_at=NOW)
    Quota.objects.create(user=world.ann, running_jobs=3)
    Quota.objects.create(project=world.blue, running_tasks=3)
    with CaptureQueriesContext(connection) as statements:
        blue, ann = load_quotas([user(world.ann), project(world.blue)])
    assert len(statements) == 2
    assert (ann.jobs, ann.limits.running_jobs) == (frozenset({first.pk, second.pk}), 3)
    # Of the first one only one of two has ended; of the second, all that holds something.
    assert ann.leaving_jobs == frozenset({second.pk})
    assert (blue.jobs, blue.leaving_jobs, blue.running_tasks) == (frozenset(), frozenset(), 1)


def test_usage_of_an_idle_scope_is_empty(world: World) -> None:
    world.job(world.bob, world.far, held=1)
    scope = user(world.ann)
    usage = load_scope_usage([scope], with_jobs=True)[scope]
    assert (usage.resources, usage.tasks, usage.jobs) == ({}, 0, set())
