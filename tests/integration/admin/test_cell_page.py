"""The page of a cell: its work, the last hour, resources, failed images, changes and its drain."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.models import (
    Attempt,
    Cell,
    CellChange,
    CellSample,
    ImageFailure,
    Job,
    Pool,
    Project,
    Task,
    TaskGroup,
)
from tests.integration.admin.rows import NOW, add_attempts, make_job
from tests.integration.admin.test_live import etag_of, poll
from tests.integration.admin.test_pages import address_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pages be opened two minutes after the attempts of `rows` began."""
    monkeypatch.setattr(clock, "now", lambda: NOW + timedelta(minutes=2))


def cell() -> Cell:
    return Cell.objects.get(name="cell-ready")


def page(browser: Client, query: str = "") -> str:
    answer = browser.get(f"{address_of(Cell, cell())}{query}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def section(page: str, anchor: str) -> str:
    """Return the HTML of a section."""
    found = re.search(
        rf'<section class="cellrun-section" id="{anchor}">(.*?)</section>', page, re.S
    )
    assert found is not None, page
    return found[1]


def text_of(fragment: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", fragment)).split())


def drain(**facts: Any) -> None:
    order = {"ordered_state": "DRAINING", "state": "DRAINING", "draining_since": NOW}
    Cell.objects.filter(pk=cell().pk).update(**order | facts)


def follow(browser: Client, fragment: str, text: str) -> str:
    """Return the list to which a count links."""
    found = re.search(rf'href="([^"]*)">{text}</a>', fragment)
    assert found is not None, fragment
    answer = browser.get(html.unescape(found[1]))
    assert answer.status_code == 200
    return str(answer.content.decode())


def uids_in(listing: str) -> set[str]:
    return set(re.findall(r'class="cellrun-uid">([^<]*)<', listing))


def test_attempts_that_run_are_listed_with_state_and_resources(operator: Client) -> None:
    attempt = Attempt.objects.filter(cell=cell(), released_at=None, state=TaskState.BUILDING)[0]
    shown = text_of(section(page(operator), "attempts"))
    assert str(attempt.pk) in shown
    assert "pulling 40 %" in shown
    assert "0.1 cpu, 32 MiB memory" in shown
    held = Attempt.objects.filter(cell=cell(), released_at=None)
    listing = follow(operator, page(operator), f"{held.count()} hold capacity")
    assert uids_in(listing) == {str(it.pk) for it in held}


def test_the_waterfall_has_the_last_hour_only(operator: Client) -> None:
    old = Attempt.objects.filter(cell=cell(), state=TaskState.SUCCEEDED)[0]
    name = f"{old.job.name} main.{old.task.index} #1"
    assert name in text_of(section(page(operator), "waterfall"))
    before = NOW - timedelta(hours=2)
    times = {"created_at": before, "started_at": before, "finished_at": before}
    Attempt.objects.filter(pk=old.pk).update(**times, released_at=before, state_since=before)
    shown = section(page(operator), "waterfall")
    assert name not in text_of(shown)
    assert "now" in text_of(shown)
    # What began before the hour begins at its edge.
    running = Attempt.objects.filter(cell=cell(), state=TaskState.RUNNING)[0]
    Attempt.objects.filter(pk=running.pk).update(created_at=before, started_at=before)
    assert "left: 0.000%; width: 100.000%" in section(page(operator), "waterfall")


def test_resources_are_drawn_over_an_hour_and_a_day(operator: Client) -> None:
    figures = {
        f"{name}_{part}": 0 for name in ("gpu",) for part in ("used", "reserved", "capacity")
    }
    for minutes in (1, 90):
        CellSample.objects.create(
            cell=cell(),
            at=NOW - timedelta(minutes=minutes),
            cpu_millis_used=500 * minutes,
            cpu_millis_reserved=250,
            cpu_millis_capacity=64_000,
            memory_mib_used=1024,
            memory_mib_reserved=0,
            memory_mib_capacity=4096,
            **figures,
        )
    hour = text_of(section(page(operator), "capacity"))
    assert "0.5 used, 0.25 reserved, 63.25 free; at most 0.5 used" in hour
    assert "1 GiB used, 0 MiB reserved, 3 GiB free" in hour
    assert "GPUs" not in hour
    assert "There are samples for only 1 of 60 minutes." in hour
    day = text_of(section(page(operator, "?span=day"), "capacity"))
    assert "at most 45 used" in day
    assert "There are samples for only 2 of 96 periods of 15 minutes." in day
    assert text_of(section(page(operator, "?span=century"), "capacity")) == hour


def test_failed_images_have_a_reason_and_lead_to_their_attempts(operator: Client) -> None:
    TaskGroup.objects.update(launch={"image": "app:1"})
    task = Task.objects.filter(state=TaskState.RUNNING)[0]
    add_attempts(task, [TaskState.FAILED] * 2)
    failed = Attempt.objects.filter(task=task, state=TaskState.FAILED)
    facts = {"reason": "image_error", "message": "manifest unknown"}
    failed.update(**facts, cell=cell(), started_at=None)
    ImageFailure.objects.create(
        image="base:2", cell=cell(), failures=3, failed_at=NOW, held_until=NOW
    )
    shown = section(page(operator), "images")
    assert "app:1 2" in text_of(shown)
    assert "manifest unknown" in text_of(shown)
    assert "base:2 3" in text_of(shown)
    listing = follow(operator, shown, "2")
    assert uids_in(listing) == {str(it.pk) for it in failed}
    failed.update(finished_at=NOW - timedelta(days=2))
    assert "app:1" not in text_of(section(page(operator), "images"))


def test_a_pull_that_failed_for_the_registry_counts_but_no_failure_after_the_start(
    operator: Client,
) -> None:
    TaskGroup.objects.update(launch={"image": "app:1"})
    task = Task.objects.filter(state=TaskState.RUNNING)[0]
    add_attempts(task, [TaskState.FAILED])
    failed = Attempt.objects.filter(task=task, state=TaskState.FAILED)
    failed.update(reason="system_failure", phase="pulling", message="pull: refused", cell=cell())
    assert "app:1" not in text_of(section(page(operator), "images"))
    failed.update(started_at=None)
    assert "app:1 1" in text_of(section(page(operator), "images"))


def test_a_quarantine_for_failures_begins_with_the_failed_attempts(operator: Client) -> None:
    task = Task.objects.filter(state=TaskState.RUNNING)[0]
    add_attempts(task, [TaskState.WORKER_FAILED])
    failed = Attempt.objects.filter(task=task, state=TaskState.WORKER_FAILED)
    failed.update(failure_kind="system", message="the engine has no space left", cell=cell())
    assert "Newest system failures" not in page(operator)
    Cell.objects.filter(pk=cell().pk).update(
        state="QUARANTINED", quarantined_for="failures", quarantined_until=NOW
    )
    found = section(page(operator), "failures")
    assert "the engine has no space left" in text_of(found)
    assert address_of(Attempt, failed.get()) in found


def test_changes_are_shown_newest_first_in_pages(operator: Client) -> None:
    for number in range(35):
        states = ("READY", "QUARANTINED") if number % 2 == 0 else ("QUARANTINED", "READY")
        CellChange.objects.create(
            cell=cell(),
            at=NOW + timedelta(seconds=number),
            from_state=states[0],
            to_state=states[1],
            reason=f"reason-{number}",
            actor="olga" if number % 2 else "",
        )
    shown = section(page(operator), "changes")
    assert re.findall(r"reason-(\d+)", shown) == [str(number) for number in range(34, 4, -1)]
    assert "quarantined → ready reason-33 olga" in text_of(shown)
    assert "ready → quarantined reason-34 cell or convergence" in text_of(shown)
    found = re.search(r'href="(\?changes_before=[^"#]*)', shown)
    assert found is not None
    older = section(page(operator, found[1]), "changes")
    assert re.findall(r"reason-(\d+)", older) == [str(number) for number in range(4, -1, -1)]
    assert "Audit lines of this cell" in text_of(older)
    assert page(operator, "?changes_before=x")


def test_a_drain_shows_what_is_left_and_until_when(operator: Client) -> None:
    assert 'id="drain"' not in page(operator)
    drain(drain_deadline_at=NOW + timedelta(hours=2))
    held = Attempt.objects.filter(cell=cell(), released_at=None)
    Attempt.objects.filter(cell=cell(), released_at=NOW + timedelta(seconds=63)).update(
        released_at=NOW + timedelta(seconds=90)
    )
    ended = Attempt.objects.filter(cell=cell(), released_at__gte=NOW)
    shown = section(page(operator), "drain")
    left, total = held.count(), held.count() + ended.count()
    assert left
    assert ended.count()
    assert f"{left} of {total} attempts left, the longest until 14:00 UTC" in text_of(shown)
    assert f"{ended.count()} ended since" in text_of(shown)
    assert uids_in(follow(operator, shown, str(left))) == {str(it.pk) for it in held}
    assert uids_in(follow(operator, shown, str(ended.count()))) == {str(it.pk) for it in ended}


def test_a_change_of_the_cell_refreshes_the_page_and_nothing_else_of_other_cells(
    operator: Client,
) -> None:
    address = address_of(Cell, cell())
    etag = etag_of(operator.get(address))
    assert poll(operator, address, etag).status_code == 304
    row = {"at": NOW, "from_state": "READY", "to_state": "CORDONED"}
    CellChange.objects.create(cell=Cell.objects.get(name="cell-draining"), **row)
    assert poll(operator, address, etag).status_code == 304
    CellChange.objects.create(cell=cell(), **row)
    assert poll(operator, address, etag).status_code == 200


@pytest.mark.parametrize("missing", ["attempt", "job", "task"])
def test_work_is_hidden_without_the_permission_to_view_it(installation: None, missing: str) -> None:
    user = User.objects.create_user("nina", is_staff=True)
    shown = {"view_cell", "view_attempt", "view_job", "view_task"} - {f"view_{missing}"}
    user.user_permissions.set(Permission.objects.filter(codename__in=shown))
    drain()
    browser = Client()
    browser.force_login(user)
    seen = page(browser)
    assert "sweep" not in seen
    assert not any(str(uid) in seen for uid in Attempt.objects.values_list("pk", flat=True))
    assert 'id="capacity"' in seen
    assert 'id="changes"' in seen
    assert "attempts left" in seen
    assert "Audit lines" not in seen


def test_statements_do_not_grow_with_the_work_of_the_cell(operator: Client) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as caught:
            page(operator)
        return len(caught.captured_queries)

    drain()
    few = count()
    pool, owner = Pool.objects.get(name="default"), User.objects.get(username="ann")
    Cell.objects.filter(pk=cell().pk).update(state="READY")
    make_job(Project.objects.get(), pool, owner, list(TaskState) * 8)
    drain()
    CellChange.objects.bulk_create(
        CellChange(cell=cell(), at=NOW, from_state="READY", to_state="LOST") for _ in range(40)
    )
    assert Job.objects.count() == 2
    assert count() == few
    assert few <= 19
