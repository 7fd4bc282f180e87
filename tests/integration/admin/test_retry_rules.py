"""The page of an attempt shows the retry rule that decided on its end."""

import pytest
from django.test import Client

from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Task, TaskGroup
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
