"""The page of a job shows its concurrency key and the jobs that hold it."""

import pytest
from django.test import Client

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def test_job_shows_its_key_and_the_jobs_that_hold_it(operator: Client) -> None:
    job, other = job_of([S.PENDING]), job_of([S.RUNNING, S.RUNNING])
    assert "Concurrency key" not in words(page(operator, address_of(Job, job)))
    rule = {"key": "customer-42", "limit": 2, "starts": {"count": 5, "per_seconds": 60}}
    Job.objects.filter(pk=job.pk).update(concurrency_id=7, spec={**job.spec, "concurrency": rule})
    shown = words(page(operator, address_of(Job, job)))
    assert "no task of the project holds the key customer-42 now" in shown
    Attempt.objects.filter(job=other).update(concurrency_id=7)
    shown = words(page(operator, address_of(Job, job)))
    assert "customer-42 2 2 at most 5 in 60 s wait" in shown
    assert f"job tasks on cells {other.pk} 2" in shown
