"""Every page of the operators' site is drawn from real rows and shows what it must."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.admin.lists import paging
from controlplane.admin.work import timeline
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import COLOURS
from controlplane.models import (
    Alert,
    ApiToken,
    Attempt,
    AuditLine,
    BulkOperation,
    CacheEntry,
    Callback,
    Cell,
    CellLease,
    Domain,
    Job,
    Membership,
    NotificationAddress,
    NotificationRule,
    OidcIdentity,
    OneOff,
    Pool,
    Project,
    Quota,
    Secret,
    Shape,
    Task,
    TickRun,
    Transition,
)
from controlplane.queries.views import history
from controlplane.storage.folder import append_log
from tests.integration.admin.rows import (
    NOW,
    WHY_PENDING,
    make_cache_entry,
    make_callbacks,
    make_job,
)

pytestmark = pytest.mark.django_db

MODELS = sorted(
    (model for model in admin.site._registry if model._meta.app_label == "controlplane"),
    key=lambda model: model.__name__,
)


def address_of(model: type[models.Model], row: models.Model | None = None) -> str:
    base = f"/admin/controlplane/{model._meta.model_name}/"
    return base if row is None else f"{base}{row.pk}/change/"


def page(browser: Client, address: str) -> str:
    answer = browser.get(address)
    assert answer.status_code == 200, answer
    return unescape(answer.content.decode())


def words(html: str) -> str:
    """What a reader sees of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_registered_models_are_the_expected_ones() -> None:
    assert {model.__name__ for model in MODELS} == {
        "Alert",
        "ApiToken",
        "Attempt",
        "AuditLine",
        "BulkOperation",
        "CacheEntry",
        "Callback",
        "Cell",
        "DeadLetter",
        "Domain",
        "Job",
        "Membership",
        "NotificationAddress",
        "NotificationMessage",
        "NotificationRule",
        "OidcIdentity",
        "OneOff",
        "Pool",
        "Project",
        "Quota",
        "Schedule",
        "Secret",
        "Task",
        "TickRun",
        "TickState",
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_list_and_detail_pages_render(operator: Client, model: type[models.Model]) -> None:
    rows = list(model._default_manager.all())
    assert rows
    assert "Cellrun" in page(operator, address_of(model))
    for row in rows:
        answer = operator.get(address_of(model, row), follow=model is OneOff)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("model", "query"),
    [
        ("job", "state__exact=3"),
        ("job", "band__exact=2"),
        ("job", "q=sweep"),
        ("job", "q=99999999999999999999999"),
        ("task", "open=pending"),
        ("task", "open=held"),
        ("task", "open=stuck"),
        ("task", "open=pending&pool=default&band=2"),
        ("task", "pool=unknown&band=7"),
        ("task", "open=pending&user=1"),
        ("task", "open=held&project=1"),
        ("task", "open=pending&domain=nonsense"),
        ("job", "on_cells=yes&owner__id__exact=1"),
        ("job", "on_cells=yes&project__domain__id__exact=1"),
        ("attempt", "held=yes&cell__pool__id__exact=1&job__band__exact=2"),
        ("task", "job__id__exact=1"),
        ("task", "q=nonsense"),
        ("attempt", "held=yes"),
        ("attempt", "held=yes&state__exact=3"),
        ("attempt", "held=yes&cell__id__exact=1"),
        ("attempt", "q=nonsense"),
        ("cell", "state__exact=READY"),
        ("alert", "open=yes"),
        ("alert", "q=mass_loss"),
        ("job", "is_one_off__exact=1"),
        ("oneoff", "resolving=yes"),
        ("oneoff", "q=cf-tasks"),
        ("callback", "state__exact=waiting"),
        ("callback", "host=hook.example:443"),
        ("callback", "q=1"),
        ("callback", "q=hook.example:443"),
        ("cacheentry", "present=yes"),
        ("cacheentry", "present=no"),
        ("cacheentry", "is_shared__exact=1"),
        ("cacheentry", "q=model"),
        ("task", "cache_entry_id__exact=1"),
        ("notificationmessage", "open=yes&state__exact=waiting"),
        ("notificationrule", "about__exact=alerts&q=night"),
        ("notificationaddress", "q=ops"),
        ("auditline", "q=old"),
        ("tickrun", "tick=placement"),
    ],
)
def test_filters_and_searches_work(operator: Client, model: str, query: str) -> None:
    assert page(operator, f"/admin/controlplane/{model}/?{query}")


def test_search_finds_by_name_number_and_uid(operator: Client) -> None:
    job, attempt = Job.objects.get(), Attempt.objects.first()
    assert attempt is not None
    for term in ("sweep", str(job.pk)):
        assert "1 job" in words(page(operator, f"/admin/controlplane/job/?q={term}"))
    assert "1 job" in words(page(operator, "/admin/controlplane/job/?q=wee"))
    assert "0 jobs" in words(page(operator, "/admin/controlplane/job/?q=sweeper"))
    assert "1 attempt" in words(page(operator, f"/admin/controlplane/attempt/?q={attempt.pk}"))


def test_state_badges_use_the_domain_names_and_colours(operator: Client) -> None:
    html = page(operator, address_of(Task))
    for state in TaskState:
        name = state.name.lower()
        badge = f'class="cellrun-status status-{name}" style="--status: {COLOURS[state]}">{name}<'
        assert badge in html


def test_pending_task_shows_its_pending_reason(operator: Client) -> None:
    task = Task.objects.get(state=TaskState.PENDING)
    for address in (address_of(Task), address_of(Task, task), address_of(Job, task.job)):
        assert WHY_PENDING in page(operator, address)


def test_worker_failures_and_build_phases_are_shown(operator: Client) -> None:
    task = Task.objects.get(state=TaskState.WORKER_FAILED)
    shown = words(page(operator, address_of(Task, task)))
    assert "worker_failed (worker failure)" in shown
    assert "cell disappeared before completion" in shown
    assert "pulling 40 %" in words(page(operator, address_of(Attempt)))


def test_task_history_shows_transitions_with_reasons(operator: Client) -> None:
    task = Task.objects.get(state=TaskState.FAILED)
    shown = words(page(operator, address_of(Task, task)))
    assert re.search(
        r"pending submitted by ann .*pending → assigned placed on a cell \(cell-ready\) by ann"
        r".*assigned → failed its program ended with a non-zero exit status \(cell-ready\) by ann",
        shown,
    )


def test_history_shows_the_duration_of_each_state(
    operator: Client,
) -> None:
    task = Task.objects.get(state=TaskState.FAILED)
    changes = Transition.objects.filter(task_id=task.pk).order_by("id")
    for change, seconds in zip(changes, (2.5, 63), strict=True):
        Transition.objects.filter(pk=change.pk).update(at=NOW + timedelta(seconds=seconds))
    attempt, open_stay = Attempt.objects.get(task=task), r"\d\s[smhd] so far"
    for address in (address_of(Task, task), address_of(Attempt, attempt)):
        shown = words(page(operator, address)).replace("\xa0", " ")
        assert re.search(r"pending → assigned placed on a cell .* by ann 1 m 00 s", shown)
        assert ("submitted by ann 2.50 s" in shown) == (address == address_of(Task, task))
        assert not re.search(open_stay, shown)
    running = Task.objects.get(state=TaskState.RUNNING)
    assert re.search(open_stay, words(page(operator, address_of(Task, running))))


def test_job_history_merges_equal_transitions_of_many_tasks(operator: Client) -> None:
    job = Job.objects.get()
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    many = make_job(project, job.pool, owner, [TaskState.ASSIGNED] * 30)
    html = page(operator, address_of(Job, many))
    assert "30 tasks pending → assigned placed on a cell (cell-ready)" in words(html)
    history_part = html[html.index("<h2>History") :]
    unfolded = history_part[history_part.index("<details") : history_part.index("</details>")]
    assert "and 5 earlier changes" in words(unfolded)
    assert len(re.findall(r">main\.\d+</a>", unfolded)) == 25


def test_long_history_has_the_newest_changes_and_all_of_the_job(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_FIRST_READ", 10)
    monkeypatch.setattr(timeline, "_MOST_READ", 10)
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    many = make_job(project, Pool.objects.get(name="default"), owner, [TaskState.ASSIGNED] * 25)
    shown = words(page(operator, address_of(Job, many)))
    assert "History (the newest 1 entries, and older ones of the job)" in shown
    assert shown.count("10 tasks pending → assigned") == 1
    assert "15 tasks" not in shown
    assert "job pending submitted" in shown


def test_repeated_rounds_are_merged_and_list_their_attempts(operator: Client) -> None:
    task = Task.objects.get(state=TaskState.ASSIGNED)
    Transition.objects.filter(task_id=task.pk).delete()
    (attempt,) = Attempt.objects.filter(task=task)
    for turn in range(12):
        add, at = turn % 2, NOW + timedelta(seconds=5 * turn)
        Transition.objects.create(
            job_id=task.job_id,
            task_id=task.pk,
            attempt_uid=attempt.pk,
            from_state=TaskState.ASSIGNED if add else TaskState.PENDING,
            to_state=TaskState.PENDING if add else TaskState.ASSIGNED,
            reason="refused" if add else "placed",
            message=f"disk full {turn}" if add else "",
            actor="cell" if add else "placement",
            at=at,
        )
    html = page(operator, address_of(Task, task))
    shown = words(html).replace("\xa0", " ")
    assert "6 times assigned → pending the cell refused it by cell-ready" in shown
    assert "disk full 11; disk full 9; disk full 7; …" in shown
    assert "25.00 s in total, 5.00 s at most" in shown
    assert html.count(">attempt 1</a>") == 12


def test_unreleased_attempt_of_a_deleted_job_shows_its_history(
    operator: Client,
) -> None:
    attempt = Attempt.objects.get(state=TaskState.RUNNING)
    Job.objects.update(deleted_at=NOW)
    shown = words(page(operator, address_of(Attempt, attempt)))
    assert "pending → assigned placed on a cell" in shown


def test_attempt_page_shows_the_log_tail(operator: Client) -> None:
    attempt = Attempt.objects.get(state=TaskState.FAILED)
    append_log(attempt.pk, "stderr", offset=0, content=b"first\n" * 500 + b"last & least\n")
    shown = page(operator, address_of(Attempt, attempt))
    assert "last & least" in shown
    assert shown.count("first\n") == 199


def test_submitted_spec_is_escaped(operator: Client) -> None:
    raw = operator.get(address_of(Job, Job.objects.get())).content.decode()
    assert "<script>alert(1)" not in raw
    assert "&lt;script&gt;alert(1)" in raw


def test_pages_link_to_flower_when_configured(operator: Client, settings: Any) -> None:
    attempt, cell = Attempt.objects.first(), Cell.objects.first()
    assert attempt is not None
    assert cell is not None
    addresses = {
        address_of(Attempt, attempt): f"task/{attempt.pk}",
        address_of(Cell, cell): f"worker/cell@{cell.name}",
        "/admin/": "workers",
    }
    assert not [address for address in addresses if "Flower" in page(operator, address)]
    known = settings.CELLRUN.model_copy(update={"flower_url": "http://flower:5555"})
    settings.CELLRUN = known
    for address, path in addresses.items():
        assert f'href="http://flower:5555/{path}"' in page(operator, address), address


def test_dashboard_shows_counts_alerts_and_tick_times(operator: Client) -> None:
    shown = words(page(operator, "/admin/"))
    for expected in ("1 waiting", "1 assigned", "1 building", "1 running", "1 quarantined"):
        assert expected in shown
    assert "mass_loss pool default 5 of 8" in shown
    assert "1 callbacks waiting 1 callbacks being tried 1 tasks resolving" in shown
    assert "passes 40 ms, reasons 2 ms placed 1" in shown.replace("\xa0", " ")


SECTIONS_OF_OVERVIEW = {
    "task": "/task/?open=pending",
    "attempt": "/attempt/?held=yes",
    "cell": "/cell/?state__exact=READY",
    "callback": "/callback/?state__exact=",
    "oneoff": "/oneoff/?resolving=yes",
    "alert": "mass_loss",
    "tickstate": "/tickstate/placement/change/",
    "job": "sweep",
}


@pytest.mark.parametrize("allowed", ["", *SECTIONS_OF_OVERVIEW])
def test_dashboard_shows_only_what_its_user_may_view(installation: None, allowed: str) -> None:
    user = User.objects.create_user("user-1", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename=f"view_{allowed}"))
    browser = Client()
    browser.force_login(user)
    shown = page(browser, "/admin/")
    found = {model for model, text in SECTIONS_OF_OVERVIEW.items() if text in shown}
    assert found == {allowed} - {""}


def test_the_sidebar_has_the_sections_and_counts_alerts(operator: Client) -> None:
    shown = words(page(operator, "/admin/"))
    assert re.search(
        r"Work .*Jobs .*Attempts .*Cells .*Pools .*Access .*Memberships .*System", shown
    )
    assert re.search(r"Alerts 1\b", shown)
    Alert.objects.update(cleared_at=NOW)
    assert "Alerts campaign Notification rules" in words(page(operator, "/admin/"))


def test_read_only_models_cannot_be_added_changed_or_deleted(operator: Client) -> None:
    for model in MODELS:
        if model in (Membership, NotificationAddress, NotificationRule, Pool, Quota, Secret):
            continue
        row = model._default_manager.first()
        assert row is not None
        if model not in (ApiToken, BulkOperation, OidcIdentity, Project):
            assert operator.get(f"{address_of(model)}add/").status_code == 403
        delete = address_of(model, row).replace("/change/", "/delete/")
        assert operator.post(delete, {"post": "yes"}).status_code == 403
        assert operator.post(address_of(model, row), {"name": "x"}).status_code == 405
        assert "delete_selected" not in page(operator, address_of(model))


def test_users_without_permission_see_no_pages(installation: None) -> None:
    outsider = Client()
    outsider.force_login(User.objects.create_user("sven"))
    for browser in (Client(), outsider):
        answer = browser.get(address_of(Job))
        assert answer.status_code == 302
        assert "/admin/login/" in answer["Location"]
    staff = Client()
    staff.force_login(User.objects.create_user("stig", is_staff=True))
    assert staff.get(address_of(Job)).status_code == 403
    assert staff.get(address_of(Job, Job.objects.get())).status_code == 403


@pytest.mark.parametrize("key", ["9" * 5_000, "9" * 19, "x", "\u00b2", "-1", "0"])
@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}])
def test_page_of_a_job_with_an_impossible_id_redirects(
    operator: Client, key: str, headers: dict[str, str]
) -> None:
    answer = operator.get(f"/admin/controlplane/job/{key}/change/", headers=headers)
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/admin/"


def test_page_of_a_missing_row_redirects(operator: Client) -> None:
    for model, key in ((Job, "999999"), (Cell, "nonsense"), (Attempt, "nonsense")):
        answer = operator.get(f"{address_of(model)}{key}/change/")
        assert answer.status_code == 302


LONG_LISTS = [Job, Task, Attempt, Cell, CacheEntry, Callback, OneOff, TickRun, AuditLine]


@pytest.mark.parametrize("model", LONG_LISTS, ids=lambda model: model.__name__)
def test_list_statement_count_does_not_grow_with_rows(
    operator: Client, model: type[models.Model]
) -> None:
    def statements() -> list[str]:
        with CaptureQueriesContext(
            connection,
        ) as caught:
            page(operator, address_of(model))
        return [item["sql"] for item in caught.captured_queries]

    few = statements()
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    pool = Pool.objects.get(name="default")
    for turn in range(4):
        job = make_job(project, pool, owner, list(TaskState) * 2)
        make_callbacks(job, guid=f"guid-{turn}")
        for task in Task.objects.filter(job=job, state=TaskState.SUCCEEDED):
            make_cache_entry(task)
        TickRun.objects.create(name="placement", started_at=NOW, finished_at=NOW)
        AuditLine.objects.create(at=NOW, actor="ann", action="deleted", subject=f"job {turn}")
    many = statements()
    # One more where there are several pages: the keys of this one.
    assert len(many) <= len(few) + 1
    assert len(many) <= 14, many
    assert not any('"launch"' in statement or '"spec"' in statement for statement in many)


@pytest.mark.parametrize(
    ("model", "most"), [(Job, 33), (Task, 18), (Attempt, 19), (Cell, 18), (Callback, 12)]
)
def test_detail_page_statement_count_is_bounded(
    operator: Client, model: type[models.Model], most: int
) -> None:
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    make_job(project, Pool.objects.get(name="default"), owner, list(TaskState) * 8)
    row = Cell.objects.get(name="cell-ready") if model is Cell else model._default_manager.last()
    with CaptureQueriesContext(connection) as caught:
        page(operator, address_of(model, row))
    assert len(caught.captured_queries) <= most, [item["sql"] for item in caught.captured_queries]


def test_list_pages_follow_the_order_without_gaps(operator: Client) -> None:
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    make_job(project, Pool.objects.get(name="default"), owner, list(TaskState) * 5)
    shown: list[int] = []
    for number in (1, 2, 3):
        html = page(operator, f"{address_of(Task)}?p={number}")
        keys = re.findall(r'href="/admin/controlplane/task/(\d+)/change/[^"]*"', html)
        shown += dict.fromkeys(int(key) for key in keys)
    assert shown == list(Task.objects.order_by("-pk").values_list("pk", flat=True))


@pytest.mark.parametrize("model", [Job, Task, Attempt])
def test_long_list_count_is_estimated_and_filtered_count_is_bounded(
    operator: Client, model: type[models.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    make_job(project, Pool.objects.get(name="default"), owner, list(TaskState))
    monkeypatch.setattr(paging, "EXACT_UP_TO", 1)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {model._meta.db_table}")
    whole = operator.get(address_of(model)).context["cl"]
    assert whole.result_count == model._default_manager.count() > 1
    chosen = operator.get(f"{address_of(model)}?state__exact={int(TaskState.FAILED)}")
    assert chosen.context["cl"].result_count <= paging.EXACT_UP_TO


@pytest.mark.parametrize("model", [Job, Task, Attempt])
def test_count_of_a_table_with_many_hidden_rows_is_corrected(
    operator: Client, model: type[models.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "_estimate", lambda table: 30_000)
    shown = operator.get(address_of(model)).context["cl"]
    assert shown.result_count == len(shown.result_list) == model._default_manager.count()


def test_silent_badge_is_shown_until_the_cell_reports_or_is_lost(operator: Client) -> None:
    cell = Cell.objects.get(name="cell-ready")
    pages = ("/admin/controlplane/cell/", f"/admin/controlplane/cell/{cell.pk}/change/")

    def count_badges() -> list[int]:
        return [operator.get(page).content.decode().count(">silent<") for page in pages]

    CellLease.objects.update(silent_ticks=0)
    assert count_badges() == [0, 0]
    CellLease.objects.filter(cell=cell).update(silent_ticks=1)
    assert count_badges() == [1, 1]
    Cell.objects.filter(pk=cell.pk).update(state="LOST")
    assert count_badges() == [0, 0]


@pytest.mark.parametrize("kind", ["user", "project", "domain"])
def test_the_usage_of_a_quota_leads_to_the_work_that_it_counts(operator: Client, kind: str) -> None:
    project, ann = Project.objects.get(), User.objects.get(username="ann")
    scope = {"user": ann, "project": project, "domain": project.domain}[kind]
    Quota.objects.all().delete()
    limits = {"running_tasks": 40, "running_jobs": 5, "pending_tasks": 50}
    Quota.objects.create(**{kind: scope}, **limits)
    other = Project.objects.create(domain=Domain.objects.create(name="other"), name="other")
    strange = User.objects.create_user("bob")
    job = make_job(other, Pool.objects.get(name="gpu"), strange, [TaskState.PENDING])
    shape = Shape.objects.create(
        id=8, pool=job.pool, band=2, owner=strange, project=other, resources={}, task_type="process"
    )
    Task.objects.filter(job=job).update(shape_id=shape.pk)
    html = page(operator, address_of(Quota))
    links = re.findall(r'<a class="cellrun-counted" href="([^"]*)">.*?>(\d+) of \d+<', html)
    assert [int(count) for _, count in links] == [3, 1, 1]
    for address, count in links:
        assert operator.get(address).context["cl"].result_count == int(count), address


def test_refused_jobs_of_a_bulk_operation_are_linked(operator: Client) -> None:
    operation = BulkOperation.objects.get()
    link = f'href="{address_of(BulkOperation, operation)}#refused">1</a>'
    assert link in page(operator, address_of(BulkOperation))
    detail = page(operator, address_of(BulkOperation, operation))
    assert link in detail
    assert 'id="refused"' in detail
