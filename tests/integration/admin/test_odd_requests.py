"""Requests of staff with characters that PostgreSQL does not store are no server error."""

import pytest
from django.contrib import admin
from django.test import Client

from controlplane.models import Job

pytestmark = pytest.mark.django_db


def test_activity_on_a_cell_with_nul_in_its_name_is_not_found(operator: Client) -> None:
    operator.raise_request_exception = False
    assert operator.get("/admin/controlplane/job/activity/?cell=a%00b").status_code == 404


@pytest.mark.parametrize("action", ["hold_jobs", "move_to_end", "cancel_jobs"])
def test_reason_with_nul_is_no_server_error(operator: Client, action: str) -> None:
    assert action in (admin.site._registry[Job].actions or ())
    operator.raise_request_exception = False
    body = {
        "action": action,
        "_selected_action": [str(Job.objects.latest("pk").pk)],
        "confirmed": "yes",
        "reason": "a\x00b",
    }
    assert operator.post("/admin/controlplane/job/", body).status_code < 500


def test_reason_of_a_bulk_operation_with_nul_is_no_server_error(operator: Client) -> None:
    operator.raise_request_exception = False
    body = {"action": "cancel", "name": "sweep", "reason": "a\x00b"}
    assert operator.post("/admin/controlplane/bulkoperation/add/", body).status_code < 500
