"""Actions of operators: confirmed first, done by commands, refused to read-only users."""

import html
import re
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpResponse
from django.test import Client

from controlplane import clock
from controlplane.commands.cells.rotation import rotate_key
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import CallbackState
from controlplane.models import (
    Alert,
    AuditLine,
    Callback,
    Cell,
    Job,
    OneOff,
    Pool,
    Task,
    Transition,
)

# Commands lock rows and send after commit.
pytestmark = pytest.mark.django_db(transaction=True)

JOBS, CELLS = "/admin/controlplane/job/", "/admin/controlplane/cell/"


def act(browser: Client, address: str, action: str, *keys: object, **answers: str) -> HttpResponse:
    sent = {"action": action, ACTION_CHECKBOX_NAME: [str(key) for key in keys], **answers}
    return browser.post(address, sent, follow=True)  # type: ignore[return-value]


def text_of(answer: Any) -> str:
    plain = re.sub(r"<[^>]*>", " ", answer.content.decode())
    return " ".join(html.unescape(plain).split())


def test_cancel_action_requires_confirmation(operator: Client) -> None:
    job = Job.objects.get()
    confirmation = text_of(act(operator, JOBS, "cancel_jobs", job.pk))
    assert "Cancel these jobs?" in confirmation
    assert f"sweep ({job.pk})" in confirmation
    assert Task.objects.filter(state=TaskState.KILLED).count() == 1

    done = act(operator, JOBS, "cancel_jobs", job.pk, confirmed="yes", reason="wrong input")
    assert "Jobs being cancelled: 1" in text_of(done)
    job.refresh_from_db()
    assert job.ending_as == TaskState.KILLED
    assert not Task.objects.filter(job=job, finished_at=None).exists()
    change = Transition.objects.filter(job_id=job.pk, actor="olga").order_by("id")
    assert change.exists()
    assert any("wrong input" in row.message for row in change)


def test_cancel_is_offered_for_open_jobs_only(
    operator: Client,
) -> None:
    job = Job.objects.get()
    page = f"{JOBS}{job.pk}/change/"
    assert "Cancel job …" in text_of(operator.get(page))
    act(operator, JOBS, "cancel_jobs", job.pk, confirmed="yes")
    assert "Cancel job …" not in text_of(operator.get(page))


def test_cancel_counts_and_lists_the_open_jobs_only(operator: Client) -> None:
    [job] = Job.objects.all()
    ended = Job.objects.create(
        **{
            name: getattr(job, name)
            for name in ("project", "owner", "pool", "min_available", "spec", "spec_digest")
        },
        name="ended",
        state=TaskState.SUCCEEDED,
        created_at=job.created_at,
        finished_at=job.created_at,
    )
    filtered = f"{JOBS}?q=e"
    both = (job.pk, ended.pk)
    confirmation = text_of(act(operator, JOBS, "cancel_jobs", *both))
    assert "1 of 2 jobs are open." in confirmation
    assert f"ended ({ended.pk})" not in confirmation
    done = text_of(act(operator, JOBS, "cancel_jobs", *both, confirmed="yes"))
    assert "Jobs being cancelled: 1" in done
    Job.objects.update(finished_at=job.created_at, state=TaskState.KILLED)
    answer = act(operator, filtered, "cancel_jobs", *both, confirmed="yes")
    assert "0 of 2 jobs are open." in text_of(answer)
    assert answer.request["QUERY_STRING"] == "q=e"  # type: ignore[attr-defined]


def test_page_of_a_project_leads_to_the_cancel_of_its_jobs(operator: Client) -> None:
    project = Job.objects.get().project
    page = operator.get(f"/admin/controlplane/project/{project.pk}/change/").content.decode()
    found = re.search(r'href="([^"]*bulkoperation/add/[^"]*)">Cancel all jobs …', page)
    assert found is not None
    form = operator.get(html.unescape(found[1])).content.decode()
    assert f'value="{project.domain.name}/{project.name}"' in form
    assert "Start a bulk operation" in form


def test_enrolment_is_changed_with_a_form(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    page = f"{CELLS}{cell.pk}/change/"
    assert "Change the enrolment …" in text_of(operator.get(page))
    form = act(operator, CELLS, "enrolment", cell.pk)
    assert "Change the enrolment of cell-ready" in text_of(form)
    assert "gpu" in text_of(form)

    def send(**answers: str) -> str:
        filled = {
            "pool": "gpu",
            "node_labels": "node/zone=a",
            "max_capacity": "",
            "fixed_tags": "*",
            **answers,
        }
        return text_of(act(operator, CELLS, "enrolment", cell.pk, confirmed="yes", **filled))

    for wrong in (
        {"node_labels": "zone=a"},
        {"node_labels": "node/zone"},
        {"max_capacity": "cpu: many"},
        {"pool": "third"},
        {"fixed_tags": "a b"},
    ):
        assert "Enrolment of cell-ready changed" not in send(**wrong)
    cell.refresh_from_db()
    assert (cell.pool.name, cell.node_labels) == ("default", {})
    text = send(max_capacity="cpu: 0.5", fixed_tags="quiet, ssd?")
    assert "Enrolment of cell-ready changed" in text
    cell = Cell.objects.get(name="cell-ready")
    assert (cell.pool.name, cell.node_labels) == ("gpu", {"node/zone": "a"})
    assert (cell.max_capacity, cell.state) == ({"cpu_millis": 500}, "CORDONED")
    shown = text_of(operator.get(page))
    assert shown.count("it differs from its enrolment") == 2  # the state, and its newest change
    assert AuditLine.objects.get(action="change.cell").actor == "olga"
    again = act(operator, CELLS, "enrolment", cell.pk).content.decode()
    assert "node/zone=a" in again
    assert "cpu: 0.5" in again
    assert "quiet, ssd?" in again
    assert cell.fixed_tags == ["quiet", "ssd?"]


def test_enrolment_is_changed_for_one_cell_at_a_time(operator: Client) -> None:
    both = Cell.objects.filter(name__in=["cell-ready", "cell-cordoned"]).values_list(
        "pk", flat=True
    )
    assert "Select one cell." in text_of(act(operator, CELLS, "enrolment", *both))


def test_page_of_a_cell_shows_a_rotation_of_its_key(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    page = f"{CELLS}{cell.pk}/change/"
    assert "next key is discarded at" not in text_of(operator.get(page)).lower()
    until = datetime(2031, 5, 1, 12, tzinfo=UTC)
    text, _ = rotate_key(name=cell.name, until=until, actor="olga", now=clock.now())
    shown = text_of(operator.get(page))
    assert "next key is discarded at" in shown.lower()
    assert "2031-05-01 12:00" in shown
    assert text not in shown


def test_revocation_of_a_key_requires_confirmation(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    page = f"{CELLS}{cell.pk}/change/"
    assert "Revoke the key …" in text_of(operator.get(page))
    assert "Revoke the keys of these cells?" in text_of(act(operator, CELLS, "revoke", cell.pk))
    cell.refresh_from_db()
    assert (cell.state, cell.revoked_at) == ("READY", None)
    act(operator, CELLS, "revoke", cell.pk, confirmed="yes", reason="its disk was sold")
    cell.refresh_from_db()
    assert cell.state_reason == "revoked by olga: its disk was sold"
    shown = text_of(operator.get(page))
    assert "REVOKED" in shown
    assert "Cordon …" not in shown
    assert "Revoke the key …" not in shown
    assert "REVOKED" in text_of(operator.get(CELLS))


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("drain", "cell-ready", "DRAINING"),
        ("cordon", "cell-ready", "CORDONED"),
        ("uncordon", "cell-cordoned", "READY"),
        ("uncordon", "cell-draining", "READY"),
    ],
)
def test_cell_actions_require_confirmation(
    operator: Client, action: str, before: str, after: str
) -> None:
    cell = Cell.objects.get(name=before)
    state = cell.state
    assert f"{action.capitalize()} these cells?" in text_of(act(operator, CELLS, action, cell.pk))
    cell.refresh_from_db()
    assert cell.state == state
    act(operator, CELLS, action, cell.pk, confirmed="yes")
    cell.refresh_from_db()
    assert cell.state == after
    assert "olga" in cell.state_reason


def test_drain_has_a_deadline_which_the_page_of_the_cell_can_change(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    page = f"{CELLS}{cell.pk}/change/"
    assert "Change the deadline …" not in text_of(operator.get(page))
    form = act(operator, CELLS, "drain", cell.pk)
    assert "Stop attempts after" in text_of(form)

    def minutes_left() -> float | None:
        cell.refresh_from_db()
        until = cell.drain_deadline_at
        return until and (until - clock.now()).total_seconds() / 60

    def send(action: str, minutes: str) -> str:
        return text_of(act(operator, CELLS, action, cell.pk, confirmed="yes", minutes=minutes))

    send("drain", "5")
    assert minutes_left() == pytest.approx(5, abs=1)
    assert "Change the deadline …" in text_of(operator.get(page))
    for wrong in ("soon", "-1", "nan", "1e300"):
        assert "minutes: must be a number" in send("change_deadline", wrong)
    assert minutes_left() == pytest.approx(5, abs=1)
    assert "Deadlines changed: 1" in send("change_deadline", "120")
    assert minutes_left() == pytest.approx(120, abs=1)
    send("change_deadline", "")
    assert minutes_left() is None
    cordoned = Cell.objects.get(name="cell-cordoned")
    refused = act(operator, CELLS, "change_deadline", cordoned.pk, confirmed="yes", minutes="5")
    assert "cell cell-cordoned does not drain" in text_of(refused)


def test_action_returns_to_the_page_on_which_it_began(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    page = f"{CELLS}{cell.pk}/change/"
    assert 'name="from_page"' in operator.get(page).content.decode()
    for action in ("cordon", "enrolment"):
        form = act(operator, CELLS, action, cell.pk, from_page="yes").content.decode()
        assert f'href="{page}">Back' in form
        assert 'name="from_page" value="yes"' in form
    answer = act(operator, CELLS, "cordon", cell.pk, confirmed="yes", from_page="yes")
    assert answer.request["PATH_INFO"] == page  # type: ignore[attr-defined]
    assert "Cells ordered to cordon: 1" in text_of(answer)
    # From a list with a filter it returns to that list.
    filtered = f"{CELLS}?state__exact=CORDONED"
    form = act(operator, filtered, "uncordon", cell.pk).content.decode()
    assert f'action="{filtered}"' in form
    answer = act(operator, filtered, "uncordon", cell.pk, confirmed="yes")
    assert answer.request["QUERY_STRING"] == "state__exact=CORDONED"  # type: ignore[attr-defined]


def test_retry_of_a_job_with_a_document_of_an_earlier_release_is_refused_with_the_reason(
    operator: Client,
) -> None:
    job = Job.objects.get()
    Job.objects.update(spec={"name": "sweep", "command": ["true"]})
    text = text_of(act(operator, JOBS, "retry_jobs", job.pk, confirmed="yes"))
    assert "image: is required for task_type container" in text
    assert Job.objects.count() == 1


def test_deleting_an_open_job_is_refused_with_the_reason(operator: Client) -> None:
    job = Job.objects.get()
    text = text_of(act(operator, JOBS, "delete_jobs", job.pk, confirmed="yes"))
    assert "has not ended" in text
    assert Job.objects.visible().filter(pk=job.pk).exists()


def test_drain_of_a_lost_cell_is_recorded_as_its_ordered_state(operator: Client) -> None:
    lost, ready = Cell.objects.get(name="cell-lost"), Cell.objects.get(name="cell-ready")
    answer = act(operator, CELLS, "drain", lost.pk, ready.pk, confirmed="yes")
    assert "Cells ordered to drain: 2" in text_of(answer)
    for cell in (lost, ready):
        cell.refresh_from_db()
    assert (ready.state, lost.state, lost.ordered_state) == ("DRAINING", "LOST", "DRAINING")


def test_onlooker_sees_no_actions_and_cannot_run_them(onlooker: Client) -> None:
    job, cell = Job.objects.get(), Cell.objects.get(name="cell-ready")
    assert "Cancel job" not in text_of(onlooker.get(f"{JOBS}{job.pk}/change/"))
    assert "Drain" not in text_of(onlooker.get(f"{CELLS}{cell.pk}/change/"))
    act(onlooker, JOBS, "cancel_jobs", job.pk, confirmed="yes")
    act(onlooker, CELLS, "drain", cell.pk, confirmed="yes")
    alert = Alert.objects.get()
    act(onlooker, "/admin/controlplane/alert/", "close_alerts", alert.pk, confirmed="yes")
    assert Alert.objects.get().cleared_at is None
    job.refresh_from_db()
    cell.refresh_from_db()
    assert (job.ending_as, cell.state) == (None, "READY")


def test_closing_an_alert_writes_an_audit_line(operator: Client) -> None:
    alerts, alert = "/admin/controlplane/alert/", Alert.objects.get()
    page = f"{alerts}{alert.pk}/change/"
    assert "Close alert …" in text_of(operator.get(page))
    assert "Close these alerts?" in text_of(act(operator, alerts, "close_alerts", alert.pk))
    assert Alert.objects.get().cleared_at is None
    done = act(operator, alerts, "close_alerts", alert.pk, confirmed="yes", reason="they are off")
    assert "Alerts closed: 1" in text_of(done)
    assert Alert.objects.get().cleared_at is not None
    line = AuditLine.objects.get(action="close.alert")
    assert (line.actor, line.text) == ("olga", "they are off; 5 of 8")
    assert "Close alert …" not in text_of(operator.get(page))
    lines = "/admin/controlplane/auditline/?q=mass_loss"
    assert "alert mass_loss: default" in text_of(operator.get(lines))


def test_callback_is_redelivered_unless_it_is_claimed(operator: Client) -> None:
    callbacks = "/admin/controlplane/callback/"
    given_up = Callback.objects.get(state=CallbackState.ABANDONED)
    claimed = Callback.objects.get(state=CallbackState.CLAIMED)
    page = text_of(operator.get(f"{callbacks}{given_up.pk}/change/"))
    assert "Deliver again …" in page
    assert "503 it answered 503" in page
    assert "Deliver again …" not in text_of(operator.get(f"{callbacks}{claimed.pk}/change/"))
    keys = (given_up.pk, claimed.pk)
    done = text_of(act(operator, callbacks, "deliver_again", *keys, confirmed="yes"))
    assert "Callbacks due for delivery: 1" in done
    assert "is being tried now" in done
    given_up.refresh_from_db()
    assert (given_up.state, given_up.ended_at) == (CallbackState.WAITING, None)


def test_a_one_off_task_is_found_by_its_guid_and_leads_to_its_task(operator: Client) -> None:
    found = text_of(operator.get("/admin/controlplane/oneoff/?q=guid-of-mine"))
    assert "1 one-off task" in found
    one_off = OneOff.objects.get()
    page = text_of(operator.get(f"/admin/controlplane/oneoff/{one_off.pk}/change/", follow=True))
    assert "guid-of-mine domain cf-tasks lifecycle resolving by nsync" in page


@pytest.mark.parametrize("is_claimed", [False, True])
def test_the_job_of_a_completed_one_off_task_is_not_deleted_by_an_action(
    operator: Client, is_claimed: bool
) -> None:
    one_off = OneOff.objects.get()
    Job.objects.filter(pk=one_off.job_id).update(
        state=TaskState.SUCCEEDED, started_at=clock.now(), finished_at=clock.now()
    )
    at = clock.now() if is_claimed else None
    OneOff.objects.update(claim=uuid4() if is_claimed else None, claimed_at=at)
    done = text_of(act(operator, JOBS, "delete_jobs", one_off.job_id, confirmed="yes"))
    why = "its job is deleted by that claim alone" if is_claimed else "claim it first"
    assert why in done
    assert OneOff.objects.filter(pk=one_off.pk).exists()
    assert Job.objects.get(pk=one_off.job_id).deleted_at is None


def test_confirming_a_mass_loss_requires_confirmation(operator: Client) -> None:
    pools, pool = "/admin/controlplane/pool/", Pool.objects.get(name="default")
    assert "Mass loss none" in text_of(operator.get(f"{pools}{pool.pk}/change/"))
    pool.loss_held_at = clock.now()
    pool.save()
    page = text_of(operator.get(f"{pools}{pool.pk}/change/"))
    assert "Mass loss suppressed since" in page
    assert "mass loss suppressed" in text_of(operator.get(pools))
    confirmation = text_of(act(operator, pools, "confirm_losses", pool.pk))
    assert "Confirm the loss of the silent cells of these pools?" in confirmation
    keys = (pool.pk, Pool.objects.get(name="gpu").pk)
    done = text_of(act(operator, pools, "confirm_losses", *keys, confirmed="yes"))
    assert "Losses confirmed: 1" in done
    assert "no mass loss is suppressed in pool gpu" in done
    pool.refresh_from_db()
    assert (pool.loss_held_at, pool.loss_confirmed_at is not None) == (None, True)
    assert AuditLine.objects.get(action="confirm.loss").actor == "olga"
    assert not Alert.objects.filter(cleared_at=None).exists()
