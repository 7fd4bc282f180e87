"""The page of an attempt shows the retry rule that decided on its end."""

import pytest
from django.test import Client

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task, TaskGroup
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def test_attempt_shows_the_rule_that_decided_on_its_end(operator: Client) -> None:
    job = job_of([S.FAILED])
    attempt = Attempt.objects.get(pk=Task.objects.get(job=job).attempt_uid)
    assert "rule 2 of on_exit" not in words(page(operator, address_of(Attempt, attempt)))
    rules = [{"do": "retry", "codes": [75]}, {"do": "fail", "codes": [2], "reason": "exit_status"}]
    TaskGroup.objects.filter(job=job).update(retry_rules=rules)
    Attempt.objects.filter(pk=attempt.pk).update(retry_rule=2)
    shown = words(page(operator, address_of(Attempt, attempt)))
    assert "retry rule rule 2 of on_exit (codes [2], reason exit_status): fail" in shown


def test_pages_show_the_growth_of_rules_and_the_requests_that_grew(operator: Client) -> None:
    job = job_of([S.FAILED])
    task = Task.objects.get(job=job)
    attempt = Attempt.objects.get(pk=task.attempt_uid)
    growth = {"memory_mib": {"percent": 150, "most": 4096}, "cpu_millis": {"amount": 2000}}
    rules = [{"do": "retry", "reason": "out_of_memory", "resources": growth}]
    own, grown = {"memory_mib": 1024}, {"memory_mib": 1536}
    TaskGroup.objects.filter(job=job).update(retry_rules=rules, resources=own)
    Attempt.objects.filter(pk=attempt.pk).update(retry_rule=1)
    assert "requests 1 GiB memory task" not in words(page(operator, address_of(Task, task)))
    Task.objects.filter(pk=task.pk).update(resources=grown)
    effect = "retry with cpu to 2; memory 1.5x, at most 4Gi"
    assert effect in words(page(operator, address_of(Job, job)))
    shown = words(page(operator, address_of(Attempt, attempt)))
    assert effect in shown
    assert "requests 1 GiB memory exit code" in shown
    shown = words(page(operator, address_of(Task, task)))
    assert "requests 1536 MiB memory (increased by retry rules from 1 GiB memory)" in shown
