"""The statement that finds failed dependencies between groups, compared with the domain's rule."""

import pytest
from django.db.models import F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import DependencyStatus, dependencies_of
from controlplane.domain.state.states import TERMINAL
from controlplane.models import Job, TaskGroup
from controlplane.queries.convergence.jobs import WAITING_JOBS
from controlplane.queries.locks import load_groups
from controlplane.queries.sql import execute, rows
from tests.integration.loop.conftest import Loop

TASKS = 3
STATES = st.sampled_from([*sorted(TERMINAL), S.PENDING])
UNTIL = st.sampled_from(["started", "succeeded", "finished"])


@pytest.fixture
def waiting_job(loop: Loop) -> Job:
    """The only job, which all examples change: group b waits for group a."""
    groups = [
        {"name": "a", "image": "x", "replicas": TASKS},
        {"name": "b", "image": "x", "depends_on": [{"group": "a"}]},
    ]
    return loop.submit(groups=groups)


def set_group(group: TaskGroup, tasks: list[tuple[S, bool]], minimum: int, missing: int) -> None:
    """Give the tasks of the group these states; bool: the task was RUNNING at some time.

    `missing`: how many of the replicas succeeded in an earlier job.
    """
    now = clock.now()
    counts = [0] * (max(S) + 1)
    pks = group.tasks.order_by("index").values_list("pk", flat=True)
    for pk, (state, has_run) in zip(pks, tasks, strict=True):
        counts[state] += 1
        execute(
            "UPDATE controlplane_task SET state = %s, started_at = %s, finished_at = %s"
            " WHERE id = %s",
            [int(state), now if has_run else None, now if state in TERMINAL else None, pk],
        )
    TaskGroup.objects.filter(pk=group.pk).update(
        counts=counts, min_available=minimum, replicas=F("task_count") + missing
    )


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(STATES, st.booleans()), min_size=TASKS, max_size=TASKS),
    st.integers(0, TASKS),
    st.integers(0, 1),
    UNTIL,
)
@example([(S.FAILED, False)] * TASKS, 0, 0, "started")
@example([(S.FAILED, False)] * TASKS, 0, 1, "started")
@example([(S.KILLED, True)] * TASKS, TASKS, 0, "started")
@example([(S.SUCCEEDED, True), (S.FAILED, True), (S.FAILED, True)], 1, 0, "succeeded")
def test_statement_finds_exactly_the_impossible_dependencies(
    waiting_job: Job, tasks: list[tuple[S, bool]], minimum: int, missing: int, until: str
) -> None:
    source, dependent = TaskGroup.objects.filter(job=waiting_job).order_by("position")
    set_group(source, tasks, minimum, missing)
    TaskGroup.objects.filter(pk=dependent.pk).update(depends_on=[{"group": "a", "until": until}])
    groups = {row.facts.name: row.facts for row in load_groups([waiting_job.pk])[waiting_job.pk]}
    is_impossible = dependencies_of(groups["b"], groups) is DependencyStatus.IMPOSSIBLE
    assert bool(rows(f"SELECT j.id {WAITING_JOBS}")) is is_impossible
