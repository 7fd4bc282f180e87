"""The page of an alert: what it means, what to do, its subject, and what it affects."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.contract.states import TaskState as S
from controlplane.domain.alerts import ALERTS
from controlplane.models import (
    Alert,
    Attempt,
    Cell,
    CellLease,
    ImageFailure,
    Job,
    Pool,
    Task,
    TaskGroup,
    TickState,
)
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def add_alert(kind: str, subject: str) -> Alert:
    Alert.objects.all().delete()
    return Alert.objects.create(
        kind=kind, subject=subject, text="why", raised_at=NOW, last_raised_at=NOW
    )


def content(browser: Client, address: str) -> str:
    """Return a page without its frame."""
    return page(browser, address).split('id="live"')[1]


@pytest.mark.parametrize("kind", sorted(ALERTS))
def test_every_alert_has_its_meaning_and_what_to_do(operator: Client, kind: str) -> None:
    shown = content(operator, address_of(Alert, add_alert(kind, "x")))
    for text in (ALERTS[kind].meaning, ALERTS[kind].action):
        start = text.split("[")[0].split("`")[0]
        assert start[1:] in words(shown)
    assert "](" not in shown


def test_links_of_the_documentation_are_names_of_pages_and_code_is_marked(
    operator: Client,
) -> None:
    shown = content(operator, address_of(Alert, add_alert("cell_mismatch", "cell-ready")))
    assert "than its enrolment (docs/cells.md) allows; it is CORDONED." in words(shown)
    assert "<code>node/</code>" in shown
    shown = content(operator, address_of(Alert, add_alert("mass_loss", "default")))
    assert "(mass loss (docs/operations.md))." in words(shown)


def test_alerts_of_other_releases_have_no_explanation(operator: Client) -> None:
    shown = words(content(operator, address_of(Alert, add_alert("unknown", "job 0"))))
    assert "why" in shown
    assert "Meaning" not in shown


def subjects() -> list[tuple[str, Any]]:
    return [
        ("cell_lost", lambda: ("cell-lost", Cell.objects.get(name="cell-lost"))),
        ("mass_loss", lambda: ("gpu", Pool.objects.get(name="gpu"))),
        ("pool_skipped", lambda: (f"pool {(it := Pool.objects.get(name='gpu')).pk}", it)),
        ("plugin_failed", lambda: ("fifo of pool gpu", Pool.objects.get(name="gpu"))),
        ("contradiction", lambda: (f"job {(it := Job.objects.get()).pk}", it)),
        ("shape_unreadable", lambda: (f"group {TaskGroup.objects.get().pk}", Job.objects.get())),
        ("exclusive_held", lambda: (f"attempt {(it := Attempt.objects.earliest('pk')).pk}", it)),
        ("tick_late", lambda: ("placement", TickState.objects.get())),
    ]


@pytest.mark.parametrize(("kind", "make"), subjects(), ids=[kind for kind, _ in subjects()])
def test_alert_and_overview_link_to_the_subject(operator: Client, kind: str, make: Any) -> None:
    subject, row = make()
    alert = add_alert(kind, subject)
    link = f'href="{address_of(type(row), row)}"'
    assert link in content(operator, address_of(Alert, alert))
    overview = content(operator, "/admin/")
    assert link in overview.split("<h2>Open alerts</h2>")[1].split("</section>")[0]


@pytest.mark.parametrize("subject", ["job 999999", "job x", "attempt y", "pool none", "shape z"])
def test_subject_that_does_not_exist_is_text(operator: Client, subject: str) -> None:
    alert = add_alert("shape_unreadable", subject)
    assert subject in words(content(operator, address_of(Alert, alert)))
    assert subject in words(content(operator, "/admin/"))


def test_lost_cell_lists_the_tasks_that_it_lost_and_those_that_it_holds(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-lost")
    lost, held, before, other = Attempt.objects.order_by("pk")[:4]
    ended = {"state": S.WORKER_FAILED, "reason": "cell_lost", "released_at": NOW}
    mine = Attempt.objects.filter(cell=cell)
    for it, cell_id, at in ((lost, cell.pk, 0), (before, cell.pk, -60), (other, other.cell_id, 0)):
        finished = NOW + timedelta(seconds=at)
        Attempt.objects.filter(pk=it.pk).update(cell_id=cell_id, finished_at=finished, **ended)
    Attempt.objects.filter(pk=held.pk).update(
        cell=cell, state=S.RUNNING, finished_at=None, released_at=None
    )
    assert mine.count() == 3
    shown = content(operator, address_of(Alert, add_alert("cell_lost", "cell-lost")))
    ended_part, _, held_part = shown.partition("<h2>Tasks on the cell now</h2>")
    assert address_of(Attempt, lost) in ended_part
    assert address_of(Task, lost.task) in ended_part
    assert address_of(Attempt, before) not in shown
    assert address_of(Attempt, other) not in shown
    assert address_of(Attempt, held) in held_part
    assert "killed" not in words(shown)


def test_mass_loss_lists_the_silent_cells(operator: Client) -> None:
    CellLease.objects.filter(cell__name__in=["cell-ready", "cell-draining"]).update(silent_ticks=2)
    shown = content(operator, address_of(Alert, add_alert("mass_loss", "default")))
    silent = shown.split("<h2>Silent cells</h2>")[1]
    assert "cell-ready" in silent
    assert "cell-draining" in silent
    assert "cell-cordoned" not in silent
    assert "/task/?open=pending&pool=default" in shown


def test_image_lists_the_cells_that_could_not_pull_it(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    ImageFailure.objects.create(image="hub/x", cell=cell, failures=4, failed_at=NOW)
    shown = content(operator, address_of(Alert, add_alert("image_not_pulled", "hub/x")))
    assert "cell-ready 4" in words(shown)


def test_shape_lists_its_waiting_tasks(operator: Client) -> None:
    shown = content(operator, address_of(Alert, add_alert("shape_unreadable", "shape 7")))
    [waiting] = Task.objects.filter(state=S.PENDING)
    assert address_of(Task, waiting) in shown
    running = Task.objects.filter(state=S.RUNNING)[0]
    assert address_of(Task, running) not in shown


def test_users_get_no_links_to_pages_that_they_may_not_view(installation: None) -> None:
    user = User.objects.create_user("user-1", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_alert"))
    browser = Client()
    browser.force_login(user)
    job = Job.objects.get()
    for kind, subject in (
        ("cell_lost", "cell-ready"),
        ("contradiction", f"job {job.pk}"),
        ("mass_loss", "default"),
        ("image_not_pulled", "x"),
    ):
        alert = add_alert(kind, subject)
        for address in (address_of(Alert, alert), "/admin/"):
            shown = content(browser, address)
            assert subject in words(shown)
            assert job.name not in shown
            for model in ("cell", "job", "task", "attempt", "pool"):
                assert f"/admin/controlplane/{model}/" not in shown


def test_an_alert_page_is_a_bounded_number_of_statements(operator: Client) -> None:
    for kind, make in subjects():
        alert = add_alert(kind, make()[0])
        with CaptureQueriesContext(connection) as caught:
            page(operator, address_of(Alert, alert))
        assert len(caught) <= 18, [item["sql"] for item in caught]
