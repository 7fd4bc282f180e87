"""The timeline of what really happened: through the loop, and through a whole simulated life."""

from itertools import pairwise

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import TERMINAL
from controlplane.domain.timeline import Change
from controlplane.models import Attempt, Job, Task, Transition
from controlplane.queries.views.history import (
    HistoryPage,
    find_attempt_history,
    find_job_history,
    find_task_history,
)
from tests.integration.loop.conftest import Loop
from tests.simulation.world import World

ALL = 1_000


def changes_of(part: HistoryPage) -> list[Change]:
    """Oldest first."""
    return sorted((c for entry in part.entries for c in entry.changes), key=lambda c: c.id)


def test_history_of_a_run_has_actors_cells_and_durations(loop: Loop) -> None:
    cell = loop.cell("cell-7")
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.PULLING))
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CREATING))
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    (task,) = loop.tasks(job)
    found = changes_of(find_task_history(task.pk, limit=ALL))
    assert [(c.to_state, c.shown_actor, c.actor_kind, c.message) for c in found] == [
        (S.PENDING, "owner", "user", ""),
        (S.ASSIGNED, "placement", "control_plane", ""),
        (S.BUILDING, "cell-7", "cell", "pulling"),
        (S.BUILDING, "cell-7", "cell", "creating"),
        (S.RUNNING, "cell-7", "cell", ""),
        (S.SUCCEEDED, "cell-7", "cell", ""),
    ]
    entered = [c for c in found if c.enters]
    stays = [(after.at - c.at).total_seconds() for c, after in pairwise(entered)]
    assert [c.seconds for c in entered] == [*stays, None]
    of_attempt = changes_of(find_attempt_history(attempt.uid, limit=ALL))
    assert of_attempt == found[1:]
    of_job = changes_of(find_job_history(job.pk, limit=ALL))
    assert [(c.to_state, c.shown_actor) for c in of_job if c.task_id is None] == [
        (S.PENDING, "owner"),
        (S.RUNNING, "placement"),
        (S.SUCCEEDED, "cell-7"),
    ]
    assert {c.task_name for c in of_job} == {None, "main.0"}


def test_tasks_that_are_cancelled_together_are_one_entry(loop: Loop) -> None:
    job = loop.submit(replicas=300, resources={"cpu": 0.1, "memory": "8Mi"})
    now = job.created_at
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="ann", now=now)
    entries = find_job_history(job.pk, limit=ALL).entries
    assert [(entry.newest.to_state, entry.count, entry.shown_actor) for entry in entries] == [
        (S.KILLED, 1, "ann"),
        (S.KILLED, 300, "ann"),
        (S.PENDING, 1, "owner"),
    ]


@pytest.fixture
def lived(transactional_db: None) -> None:
    """Some jobs came and went, with faults."""
    world = World(seed=3)
    with world.installed():
        world.run(healed_at=60.0, heal=lambda: None)


def test_history_is_complete_and_its_durations_sum_to_the_lifetime(lived: None) -> None:
    assert Attempt.objects.count() > 5
    for job in Job.objects.all():
        whole = find_job_history(job.pk, limit=ALL)
        assert whole.following is None
        ids = [change.id for change in changes_of(whole)]
        rows = Transition.objects.filter(job_id=job.pk)
        assert ids == list(rows.order_by("id").values_list("id", flat=True))
    for task in Task.objects.all():
        found = changes_of(find_task_history(task.pk, limit=ALL))
        assert len(found) == 1 + Transition.objects.filter(task_id=task.pk).count()
        entered = [change for change in found if change.enters]
        assert entered[0].at == min(change.at for change in entered)
        spent = sum(change.seconds or 0 for change in entered)
        lifetime = (entered[-1].at - entered[0].at).total_seconds()
        assert spent == pytest.approx(lifetime, abs=1e-5), f"task {task.pk}"
        assert [change.seconds for change in entered].index(None) == len(entered) - 1
        if task.state in TERMINAL:
            assert entered[-1].to_state == task.state
