"""Pages refresh themselves: 304 while nothing changed, otherwise only the part that changes."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.admin.base import ReadOnlyAdmin
from controlplane.contract.states import TaskState
from controlplane.models import Alert, Attempt, AuditLine, Cell, Job, Task, Transition
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of

pytestmark = pytest.mark.django_db

LIVE_MODELS = [
    model for model, pages in admin.site._registry.items() if isinstance(pages, ReadOnlyAdmin)
]


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock: a page also refreshes when it is old."""
    monkeypatch.setattr(clock, "now", lambda: NOW)


def etag_of(response: HttpResponse) -> str:
    """Return the ETag that the page sends with its next poll."""
    found = re.search(r'"If-None-Match": "([^}]*)"}\'', response.content.decode())
    assert found is not None
    return found[1].encode().decode("unicode_escape")


def poll(browser: Client, address: str, etag: str) -> HttpResponse:
    headers = {"HX-Request": "true", "If-None-Match": etag}
    response: HttpResponse = browser.get(address, headers=headers)
    return response


def change_state(job_id: int, task_id: int | None = None) -> None:
    Transition.objects.create(
        job_id=job_id,
        task_id=task_id,
        from_state=TaskState.PENDING,
        to_state=TaskState.RUNNING,
        reason="started",
        at=NOW,
    )


@pytest.mark.parametrize("model", LIVE_MODELS, ids=lambda model: model.__name__)
def test_an_unchanged_list_is_not_sent_again(operator: Client, model: type[Any]) -> None:
    address = address_of(model)
    etag = etag_of(operator.get(address))
    assert poll(operator, address, etag).status_code == 304
    change_state(Job.objects.earliest("pk").pk)
    assert poll(operator, address, etag).status_code == 200


@pytest.mark.parametrize("address", ["/admin/", "/admin/controlplane/job/"])
def test_a_poll_gets_the_page_without_its_frame(operator: Client, address: str) -> None:
    full = operator.get(address)
    etag = etag_of(full)
    change_state(Job.objects.earliest("pk").pk)
    fragment = poll(operator, address, etag)
    text = fragment.content.decode()
    assert text.count('id="live"') == 1
    assert "<html" not in text
    assert "<nav" not in text
    assert etag_of(fragment) != etag
    assert poll(operator, address, etag_of(fragment)).status_code == 304


@pytest.mark.parametrize("model", [Job, Task, Attempt])
def test_the_page_of_a_row_depends_on_its_history(operator: Client, model: type[Any]) -> None:
    attempt = Attempt.objects.earliest("uid")
    row = {Job: attempt.job, Task: attempt.task, Attempt: attempt}[model]
    address = address_of(model, row)
    etag = etag_of(operator.get(address))
    change_state(attempt.job_id + 1, attempt.task_id + 1)
    assert poll(operator, address, etag).status_code == 304
    change_state(attempt.job_id, attempt.task_id)
    assert poll(operator, address, etag).status_code == 200


def test_a_page_is_rendered_again_when_it_is_old(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = address_of(Job, Job.objects.earliest("pk"))
    cells = address_of(Cell)
    etags = {address: etag_of(operator.get(address)) for address in (job, cells)}
    monkeypatch.setattr(clock, "now", lambda: NOW + timedelta(seconds=10))
    assert poll(operator, job, etags[job]).status_code == 304
    assert poll(operator, cells, etags[cells]).status_code == 200
    monkeypatch.setattr(clock, "now", lambda: NOW + timedelta(seconds=60))
    assert poll(operator, job, etags[job]).status_code == 200


def test_a_change_with_an_earlier_id_refreshes_the_page(operator: Client) -> None:
    job = Job.objects.earliest("pk")
    newest = Transition.objects.latest("pk").pk
    row = {"from_state": TaskState.PENDING, "to_state": TaskState.RUNNING, "at": NOW}
    Transition.objects.create(pk=newest + 10, job_id=job.pk, reason="started", **row)
    for address in (address_of(Job, job), address_of(Job)):
        etag = etag_of(operator.get(address))
        # The transaction with the earlier id commits later.
        Transition.objects.create(pk=newest + 5, job_id=job.pk, reason="started", **row)
        assert poll(operator, address, etag).status_code == 200
        Transition.objects.filter(pk=newest + 5).delete()


def test_an_audit_line_with_an_earlier_id_refreshes_lists(operator: Client) -> None:
    AuditLine.objects.create(pk=2_000_010, at=NOW, actor="ann", action="a", subject="b")
    etag = etag_of(operator.get(address_of(Job)))
    AuditLine.objects.create(pk=2_000_005, at=NOW, actor="ann", action="a", subject="b")
    assert poll(operator, address_of(Job), etag).status_code == 200


def test_an_alert_refreshes_the_number_in_the_header_of_each_page(operator: Client) -> None:
    Alert.objects.all().delete()
    address = address_of(Job)
    full = operator.get(address)
    assert "open alert" not in full.content.decode()
    Alert.objects.create(
        kind="cell_lost",
        subject="cell-1",
        text="cell cell-1 is lost",
        raised_at=NOW,
        last_raised_at=NOW,
    )
    fragment = poll(operator, address, etag_of(full)).content.decode()
    [count] = re.findall(r'<span id="open-alerts" hx-swap-oob="true">(.*?)</span>', fragment)
    assert "1 open alert" in count
    assert "/admin/controlplane/alert/?open=yes" in count
    for path in ("/admin/", address_of(Cell), "/admin/auth/user/"):
        assert "1 open alert" in operator.get(path).content.decode()
    Alert.objects.update(cleared_at=NOW)
    assert poll(operator, address, etag_of(operator.get(address))).status_code == 304


def test_users_without_the_permission_get_no_number_of_alerts(installation: None) -> None:
    browser = Client()
    browser.force_login(User.objects.create_user("nina", is_staff=True))
    assert Alert.objects.filter(cleared_at=None).exists()
    assert "open alert" not in browser.get("/admin/").content.decode()


def test_an_unchanged_page_costs_one_statement_beside_the_login(operator: Client) -> None:
    address = address_of(Job)
    etag = etag_of(operator.get(address))
    with CaptureQueriesContext(connection) as queries:
        assert poll(operator, address, etag).status_code == 304
    others = [
        query["sql"]
        for query in queries
        if "django_session" not in query["sql"] and "auth_user" not in query["sql"]
    ]
    assert len(others) == 1, others


def test_a_poll_without_permission_gets_no_content(operator: Client, installation: None) -> None:
    address = address_of(Job)
    etag = etag_of(operator.get(address))
    other = Client()
    other.force_login(User.objects.create_user("nina", is_staff=True))
    assert poll(other, address, etag).status_code == 403
    assert poll(Client(), address, etag).status_code == 302
