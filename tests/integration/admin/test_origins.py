"""The page of a job links the schedule that started it, and has the retry rules of its groups."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.contract.states import TaskState as S
from controlplane.models import (
    Attempt,
    Job,
    Pool,
    Project,
    Schedule,
    ScheduleFiring,
    TaskGroup,
    Transition,
)
from tests.integration.admin.rows import NOW, make_job
from tests.integration.admin.test_pages import page, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(operator: Client) -> Job:
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    return make_job(project, Pool.objects.get(name="default"), owner, [S.FAILED])


def start_by_schedule(job: Job) -> Schedule:
    schedule = Schedule.objects.earliest("pk")
    at = NOW + timedelta(hours=1)
    ScheduleFiring.objects.create(
        schedule=schedule, at=at, fired_at=at, outcome="started", job_id=job.pk
    )
    job.guid = f"{schedule.name}/{at:%Y-%m-%dT%H:%M:%SZ}"
    job.labels = {"schedule": schedule.name}
    job.save()
    return schedule


def test_job_and_schedule_link_each_other(operator: Client, job: Job) -> None:
    schedule = start_by_schedule(job)
    there = f"/admin/controlplane/schedule/{schedule.pk}/change/"
    assert there in page(operator, f"/admin/controlplane/job/{job.pk}/change/")
    assert f"/admin/controlplane/job/{job.pk}/change/" in page(operator, there)


@pytest.mark.parametrize(
    "guid", ["other/2031-05-04T02:30:00Z", "nightly/soon", "nightly/2031-05-04"]
)
def test_label_alone_names_no_schedule(operator: Client, job: Job, guid: str) -> None:
    schedule = start_by_schedule(job)
    Job.objects.filter(pk=job.pk).update(guid=guid, labels={"schedule": guid.partition("/")[0]})
    found = page(operator, f"/admin/controlplane/job/{job.pk}/change/")
    assert f"/admin/controlplane/schedule/{schedule.pk}/change/" not in found


def test_retry_rules_and_the_ends_that_they_decided(operator: Client, job: Job) -> None:
    path = f"/admin/controlplane/job/{job.pk}/change/"
    assert "Retry rules" not in words(page(operator, path))
    rules = [{"do": "retry", "codes": [75, 76]}, {"do": "fail", "reason": "out_of_memory"}]
    TaskGroup.objects.filter(job=job).update(retry_rules=rules)
    text = words(page(operator, path))
    assert "exit code 75 or 76" in text
    assert "reason out_of_memory" in text
    assert "none among the last 1,000 changes" in text
    attempt = Attempt.objects.get(job=job)
    Attempt.objects.filter(pk=attempt.pk).update(retry_rule=1)
    Transition.objects.create(
        job_id=job.pk,
        task_id=attempt.task_id,
        attempt_uid=attempt.pk,
        reason="exit_status",
        message="rule 1 of on_exit retries the task",
        at=NOW,
    )
    html = page(operator, path)
    section = words(html)[words(html).index("Ends that retry rules decided") :]
    assert "rule 1 of on_exit retries the task" in section
    assert f"/admin/controlplane/attempt/{attempt.pk}/change/" in html
