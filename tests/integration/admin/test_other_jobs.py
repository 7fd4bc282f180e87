"""What operators see of jobs that have to do with others, and retry, deletion and release."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.one_offs import desire_task
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.tenancy.accounts import create_default_tenancy
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, JobDependency, OneOff, Task, Transition
from controlplane.spec import parse_job
from controlplane.spec.one_off import parse_one_off
from tests.integration.admin.test_actions import JOBS, act, text_of

# Commands lock rows and send after commit.
pytestmark = pytest.mark.django_db(transaction=True)

ATTEMPTS = "/admin/controlplane/attempt/"


def submit(**fields: object) -> Job:
    create_default_tenancy()
    body = {"name": "other", "image": "x", "command": ["true"], **fields}
    owner = User.objects.get(username="ann")
    (done,) = submit_jobs(specs=[parse_job(body)], bodies=[body], owner=owner, now=clock.now())
    return Job.objects.get(pk=done.job_id)


def cancel(job: Job) -> None:
    cancel_job(job_id=job.pk, reason="", force=False, actor="ann", now=clock.now())


def page_of(browser: Client, job: Job) -> str:
    answer = browser.get(f"{JOBS}{job.pk}/change/")
    assert answer.status_code == 200
    return text_of(answer)


def test_job_page_shows_parent_children_and_dependencies(operator: Client) -> None:
    parent = submit(name="parent", coscheduled=True)
    over = submit(name="over")
    cancel(over)
    child = submit(
        name="child",
        parent=parent.pk,
        delivery="at_most_once",
        exclusive="strict",
        depends_on=[{"job": parent.pk, "until": "started"}, {"job": over.pk, "until": "finished"}],
    )
    text = page_of(operator, child)
    assert f"parent parent ({parent.pk}) pending" in text
    assert f"depends on parent ({parent.pk}) pending started" in text
    dependency = JobDependency.objects.get(on_job=over)
    assert dependency.met_at is not None
    assert f"depends on over ({over.pk}) killed finished {dependency.met_at:%Y-%m-%d}" in text
    assert "at most once, strictly exclusively" in text
    assert f"waits until job {parent.pk} has started" in text
    text = page_of(operator, parent)
    assert f"child child ({child.pk}) pending" in text
    assert f"dependant child ({child.pk}) pending started" in text
    assert "gang the minimum of each group starts together" in text
    Job.objects.filter(pk=parent.pk).update(is_requeuing=True)
    assert "its gang fell below a minimum and is being requeued" in page_of(operator, parent)
    assert operator.get(f"{JOBS}?parent__id__exact={parent.pk}").status_code == 200
    assert "no related jobs" in page_of(operator, submit())


def test_parent_of_many_jobs_links_to_the_list_of_its_children(operator: Client) -> None:
    parent = submit(name="parent")
    for _ in range(51):
        submit(parent=parent.pk)
    answer = operator.get(f"{JOBS}{parent.pk}/change/")
    assert f'href="{JOBS}?parent__id__exact={parent.pk}"' in answer.content.decode()
    assert text_of(answer).count(" child other (") == 50


def test_retry_requires_confirmation_and_creates_a_job_of_the_same_owner(operator: Client) -> None:
    job = submit(replicas=3)
    assert "Retry job" not in page_of(operator, job)
    cancel(job)
    assert "Retry job …" in page_of(operator, job)
    assert "Retry these jobs?" in text_of(act(operator, JOBS, "retry_jobs", job.pk))
    assert not Job.objects.filter(retry_of=job).exists()
    assert "New jobs: 1" in text_of(act(operator, JOBS, "retry_jobs", job.pk, confirmed="yes"))
    new = Job.objects.get(retry_of=job)
    assert new.owner == job.owner
    assert Transition.objects.get(job_id=new.pk).actor == "olga"
    assert f"retry of other ({job.pk}) killed" in page_of(operator, new)
    assert f"retry other ({new.pk}) pending" in page_of(operator, job)
    refused = text_of(act(operator, JOBS, "retry_jobs", job.pk, confirmed="yes"))
    assert f"job {new.pk} retries the same tasks and has not ended yet" in refused


def test_retry_shows_how_many_tasks_of_a_group_it_contains(operator: Client) -> None:
    job = submit(replicas=3)
    cancel(job)
    Task.objects.filter(job=job, index=1).update(state=S.SUCCEEDED)
    act(operator, JOBS, "retry_jobs", job.pk, confirmed="yes")
    assert "main 2 of 3" in page_of(operator, Job.objects.get(retry_of=job))


def test_job_of_an_unclaimed_one_off_task_cannot_be_deleted(operator: Client) -> None:
    create_default_tenancy()
    body = {"guid": "one", "domain": "d", "definition": {"image": "x", "command": ["true"]}}
    owner = User.objects.get(username="ann")
    wanted = parse_one_off(body)
    task_id = desire_task(wanted=wanted, body=body, owner=owner, now=clock.now())
    job = Job.objects.get(tasks__pk=task_id)
    cancel(job)
    assert "Delete job" not in page_of(operator, job)
    refused = text_of(act(operator, JOBS, "delete_jobs", job.pk, confirmed="yes"))
    assert "task one is not RESOLVING: claim it first" in refused
    assert Job.objects.visible().filter(pk=job.pk).exists()


def test_delete_requires_confirmation_and_hides_the_job_and_its_tasks(operator: Client) -> None:
    job, task = Job.objects.get(), Task.objects.get(state=S.SUCCEEDED)
    refused = text_of(act(operator, JOBS, "delete_jobs", job.pk, confirmed="yes"))
    assert f"job {job.pk} has not ended: cancel it first" in refused
    cancel(job)
    OneOff.objects.all().delete()
    assert "Delete these jobs?" in text_of(act(operator, JOBS, "delete_jobs", job.pk))
    assert "Jobs deleted: 1" in text_of(act(operator, JOBS, "delete_jobs", job.pk, confirmed="yes"))
    for address in (
        f"{JOBS}{job.pk}/change/",
        f"/admin/controlplane/task/{task.pk}/change/",
        f"{ATTEMPTS}{task.attempt_uid}/change/",
    ):
        assert operator.get(address).status_code == 302, address
    assert "0 jobs" in text_of(operator.get(JOBS))
    assert "0 tasks" in text_of(operator.get("/admin/controlplane/task/"))
    assert "sweep" not in text_of(operator.get("/admin/"))
    # What still holds a cell is shown all the same: an operator may have to release it.
    held = Attempt.objects.filter(released_at=None)
    assert held.count() == 3
    listed = text_of(operator.get(ATTEMPTS))
    assert "3 attempts" in listed


def test_operator_releases_an_unconfirmed_attempt_with_a_reason(operator: Client) -> None:
    job = Job.objects.get()
    running = Attempt.objects.get(state=S.RUNNING)
    assert "Release attempt" not in text_of(operator.get(f"{ATTEMPTS}{running.pk}/change/"))
    refused = act(operator, ATTEMPTS, "release_attempts", running.pk, confirmed="yes", reason="x")
    assert "is RUNNING: cancel task" in text_of(refused)
    cancel(job)
    confirmation = text_of(act(operator, ATTEMPTS, "release_attempts", running.pk))
    assert "Release these attempts?" in confirmation
    silent = act(operator, ATTEMPTS, "release_attempts", running.pk, confirmed="yes")
    assert "a reason is required" in text_of(silent)
    done = act(
        operator, ATTEMPTS, "release_attempts", running.pk, confirmed="yes", reason="burnt down"
    )
    assert "Attempts released: 1" in text_of(done)
    running.refresh_from_db()
    assert running.release_kind == "operator"
    step = Transition.objects.filter(task_id=running.task_id).latest("id")
    assert (step.reason, step.message, step.actor) == (
        "released_by_operator",
        "burnt down",
        "olga",
    )


def test_onlooker_cannot_retry_delete_or_release(onlooker: Client) -> None:
    job = Job.objects.get()
    cancel(job)
    running = Attempt.objects.filter(released_at=None).first()
    assert running is not None
    for action in ("retry_jobs", "delete_jobs"):
        act(onlooker, JOBS, action, job.pk, confirmed="yes")
    act(onlooker, ATTEMPTS, "release_attempts", running.pk, confirmed="yes", reason="x")
    running.refresh_from_db()
    job.refresh_from_db()
    assert (running.released_at, job.deleted_at, Job.objects.count()) == (None, None, 1)
