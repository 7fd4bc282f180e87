"""The queue of a pool is the order in which the next pass considers groups; the page changes it."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.commands.jobs.holds import hold_job, hold_project
from controlplane.commands.jobs.move import move_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs.moves import QueueEnd
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Job, Pool
from controlplane.queries.pages import queue as pages
from controlplane.queries.pages.queue import list_queue, load_queue
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage

AS_OPERATOR: dict[str, Any] = {"role": Role.OPERATOR, "actor": "olga"}


def order(stage: Stage, pool: str = "default") -> list[tuple[int, str]]:
    """The job and the group of each entry; positions have no gap."""
    entries = load_queue(Pool.objects.get(name=pool), now=stage.now()).entries
    assert [entry.position for entry in entries] == list(range(1, len(entries) + 1))
    return [(entry.job, entry.group) for entry in entries]


def fill(stage: Stage) -> None:
    """A cell on which one small task uses all CPU."""
    stage.cell(cpu=100)
    stage.placed(name="large")


def a_crowd(stage: Stage) -> list[Job]:
    """Waiting jobs of two owners and all bands, with a child and two groups."""
    other = stage.user("other")
    small = {"cpu": 1, "memory": "64Mi"}
    jobs = [stage.submit(band="batch"), stage.submit(), other.submit(), stage.submit()]
    jobs.append(stage.submit(groups=[stage.group("b", resources=small), stage.group("a")]))
    jobs += [stage.submit(parent=jobs[1].pk), other.submit(resources={"cpu": 1, "memory": "1Gi"})]
    jobs.append(stage.submit(band="production"))
    return jobs


@pytest.mark.parametrize("sequencer", ["fifo", "lifo", "drf", "fair_share", "fair_projects"])
def test_queue_is_the_order_in_which_groups_are_placed(stage: Stage, sequencer: str) -> None:
    Pool.objects.update(sequencer=sequencer, preemption=False)
    jobs = a_crowd(stage)
    move_job(job_id=jobs[3].pk, to=QueueEnd.FRONT, now=stage.now(), **AS_OPERATOR)
    cell = stage.cell(cpu=1000)
    # Room for one task at a time, and nothing is held in between: the shares stay as they are.
    while expected := order(stage):
        stage.place()
        [placed] = Attempt.objects.filter(released_at=None)
        assert (placed.job_id, placed.group.name) == expected[0]
        cell.end(placed, S.SUCCEEDED, exit_code=0)
    assert {stage.state(job) for job in jobs} == {"SUCCEEDED"}


def test_owner_with_a_smaller_share_comes_first_and_the_share_of_the_project_is_shown(
    stage: Stage,
) -> None:
    Pool.objects.update(sequencer="fair_projects", preemption=False)
    stage.cell(cpu=1000)
    running, _ = stage.running(name="running")
    large = {"cpu": 1, "memory": "64Mi"}
    first, second = stage.submit(resources=large), stage.user("other").submit(resources=large)
    assert order(stage) == [(second.pk, "main"), (first.pk, "main")]
    [entry, _] = load_queue(Pool.objects.get(), now=stage.now()).entries
    assert entry.share == pytest.approx(0.1)
    assert (entry.waiting, entry.project) == (1, str(running.project))


def test_owners_differ_by_one_task_at_most_in_a_pool_with_shares(stage: Stage) -> None:
    Pool.objects.update(sequencer="drf")
    stage.cell(cpu=1000)
    other = stage.user("other")
    mine = [stage.submit_small(name=f"mine-{n}").pk for n in range(4)]
    theirs = [other.submit_small(name=f"theirs-{n}").pk for n in range(4)]
    found = [job for job, _ in order(stage)]
    assert sorted(found) == [*mine, *theirs]
    for end in range(len(found)):
        assert abs(sum(1 if job in mine else -1 for job in found[:end])) <= 1


def test_only_startable_groups_of_the_pool_that_are_not_held_are_in_the_queue(stage: Stage) -> None:
    stage.policy("other")
    elsewhere = stage.submit_small(pool="other")
    later = stage.now() + timedelta(hours=1)
    stage.submit_small(start_after=later.isoformat())
    held, free = stage.submit_small(), stage.submit_small(replicas=3)
    stage.submit_small(depends_on=[{"job": free.pk}])
    hold_job(job_id=held.pk, reason="x", now=stage.now(), **AS_OPERATOR)
    assert order(stage) == [(free.pk, "main")]
    assert order(stage, "other") == [(elsewhere.pk, "main")]
    hold_project(project_id=free.project_id, reason="x", now=stage.now(), **AS_OPERATOR)
    assert order(stage) == []


def test_entries_have_reasons_and_pages_and_only_readable_projects(stage: Stage) -> None:
    fill(stage)
    jobs = [stage.submit_small() for _ in range(3)]
    stage.place()
    pool, now = Pool.objects.get(), stage.now()
    found = list_queue(pool, readable=None, after=1, limit=1, now=now)
    assert [(entry["position"], entry["job"]) for entry in found] == [(2, jobs[1].pk)]
    assert found[0]["reason"]["code"] == "insufficient_resources"
    assert list_queue(pool, readable=[], after=None, limit=9, now=now) == []


def test_more_groups_than_are_ordered_are_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_GROUPS", 2)
    stage.submit_small(band="batch")
    jobs = [stage.submit_small(name=f"job-{n}") for n in range(2)]
    queue = load_queue(Pool.objects.get(), now=stage.now())
    assert not queue.is_whole
    assert [entry.job for entry in queue.entries] == [job.pk for job in jobs]


# ------------------------------------------------------------------------------------- the page


@pytest.fixture
def operator(stage: Stage) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("olga"))
    return client


def address(pool: str = "default") -> str:
    return f"/admin/controlplane/pool/{Pool.objects.get(name=pool).pk}/queue/"


def test_page_shows_the_order_the_reasons_and_what_is_held(stage: Stage, operator: Client) -> None:
    fill(stage)
    first, second, held = (stage.submit_small(name=name) for name in ("one", "two", "three"))
    hold_job(job_id=held.pk, reason="wrong input", now=stage.now(), **AS_OPERATOR)
    stage.place()
    html = operator.get(address()).content.decode()
    assert html.index(f"one ({first.pk})") < html.index(f"two ({second.pk})")
    assert "no cell has enough free capacity" in html
    assert "held by olga: wrong input, since" in html
    assert first.name in operator.get("/admin/controlplane/pool/queue/").content.decode()
    assert "/admin/controlplane/pool/queue/" in html  # in the sidebar
    pool_page = operator.get(f"/admin/controlplane/pool/{Pool.objects.get().pk}/change/")
    assert address() in pool_page.content.decode()
    assert address() in operator.get("/admin/controlplane/pool/").content.decode()


def test_buttons_of_the_page_move_hold_and_release(stage: Stage, operator: Client) -> None:
    first, second = stage.submit_small(name="one"), stage.submit_small(name="two")

    def press(action: str, job: Job) -> None:
        body = {"action": action, "_selected_action": [job.pk], "confirmed": "yes", "reason": "x"}
        operator.post("/admin/controlplane/job/", body)

    html = operator.get(address()).content.decode()
    for action in ("move_to_front", "move_to_end", "hold_jobs", "cancel_jobs"):
        assert f'name="action" value="{action}"' in html
    press("move_to_front", second)
    assert order(stage) == [(second.pk, "main"), (first.pk, "main")]
    press("hold_jobs", second)
    assert order(stage) == [(first.pk, "main")]
    assert 'value="release_jobs"' in operator.get(address()).content.decode()
    press("release_jobs", second)
    press("move_to_end", second)
    assert order(stage) == [(first.pk, "main"), (second.pk, "main")]


def test_page_of_fifty_groups_has_few_statements(stage: Stage, operator: Client) -> None:
    fill(stage)
    for _ in range(60):
        stage.submit_small()
    stage.place()
    with CaptureQueriesContext(connection) as caught:
        html = operator.get(address()).content.decode()
    assert "1 to 50 of 60" in html
    assert len(caught.captured_queries) <= 20, [item["sql"] for item in caught.captured_queries]


def test_user_without_the_permission_for_jobs_sees_no_queue(stage: Stage) -> None:
    reader = User.objects.create_user("rita", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_pool"))
    client = Client()
    client.force_login(reader)
    assert client.get(address()).status_code == 403
    reader.user_permissions.add(Permission.objects.get(codename="view_job"))
    html = client.get(address()).content.decode()
    assert "Queue of pool default" in html
    assert "move_to_front" not in html
