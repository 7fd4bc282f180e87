"""Every URL of the admin and of the own account as each role.

The rows list what a role permits, in the terms of docs/projects.md and docs/login.md: the admin
is for operators, who change everything that has a form or an action, for auditors, who view every
page and change nothing, and for staff with Django's permissions. The account is for every user, and
has nothing of others, also for operators. A URL or an action without a row fails.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from controlplane.commands.jobs.holds import hold_job, hold_project
from controlplane.commands.tenancy.members import INSTALLATION, MemberScope, put_member
from controlplane.domain.roles import Role
from controlplane.models import (
    ApiToken,
    Attempt,
    Cell,
    Job,
    NotificationAddress,
    Pool,
    Project,
    Schedule,
    TotpDevice,
)
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_artifacts import PNG, leave
from tests.integration.test_audit_routes import ended_job, unreleased

pytestmark = pytest.mark.django_db

# The visitors of each row, in this order. The member is a manager of a project and has no staff
# status; `staff` has no permission; `viewer` is staff with Django's permissions to view.
ROLES = ("anonymous", "member", "staff", "viewer", "auditor", "operator")

OK, LOGIN, DENIED, ABSENT, METHOD = "ok", "login", 403, 404, 405
"""`ok`: a page, or a redirect to another page than that of the login."""

Expected = tuple[str | int, ...]
OUT = (LOGIN, LOGIN)
EVERY_PAGE: Expected = (*OUT, OK, OK, OK, OK)
READ: Expected = (*OUT, DENIED, OK, OK, OK)
CHANGE: Expected = (*OUT, DENIED, DENIED, DENIED, OK)
NEVER: Expected = (*OUT, DENIED, DENIED, DENIED, DENIED)
NOTHING_THERE: Expected = (*OUT, ABSENT, ABSENT, ABSENT, ABSENT)
NO_FORM: Expected = (*OUT, METHOD, METHOD, METHOD, METHOD)
NO_PROVIDER: Expected = (ABSENT,) * 6
OPEN: Expected = (OK,) * 6
EVERY_USER: Expected = (LOGIN, OK, OK, OK, OK, OK)
NOT_OWN: Expected = (LOGIN, *(ABSENT,) * 5)
NOT_PENDING: Expected = (LOGIN,) * 6
"""The page of a code belongs to a login of which the password was verified."""


class Page(NamedTuple):
    """What each role gets by GET and by POST; `query` and `body` are those of the requests."""

    get: Expected
    post: Expected
    query: str = ""
    body: Mapping[str, Any] = {}
    changes: bool = False
    """Whether the POST of an operator changes rows, so that the refusal of others is tested."""


# The key of the address is that of its row.
RULE_BODY: Mapping[str, Any] = {
    "address": None,
    "about": "jobs",
    "group_wait_seconds": "10",
    "group_interval_seconds": "600",
}

# Pages of the site. Each user changes the own password and second factor, and logs out.
PAGES: Mapping[str, Page] = {
    "admin/": Page(EVERY_PAGE, EVERY_PAGE),
    "admin/login/": Page(OPEN, OPEN),
    "admin/login/code/": Page(NOT_PENDING, NOT_PENDING),
    "admin/login/second-factor/": Page(EVERY_USER, EVERY_USER, body={"code": "000000"}),
    "admin/login/oidc/": Page(NO_PROVIDER, (METHOD,) * 6),
    "admin/login/oidc/callback/": Page(NO_PROVIDER, (METHOD,) * 6, "code=x&state=y"),
    "admin/logout/": Page((OK, OK, *(METHOD,) * 4), OPEN),
    "admin/password_change/": Page(OPEN, OPEN),
    "admin/password_change/done/": Page(EVERY_PAGE, NO_FORM),
    "admin/search/": Page(EVERY_PAGE, EVERY_PAGE, "s=sweep"),
    "admin/autocomplete/": Page(
        READ, NO_FORM, "app_label=controlplane&model_name=quota&field_name=user&term=a"
    ),
    "admin/jsi18n/": Page(EVERY_PAGE, NO_FORM),
    "admin/r/<path:content_type_id>/<path:object_id>/": Page(NOTHING_THERE, NOTHING_THERE),
    "admin/^(?P<app_label>controlplane|auth)/$": Page(
        (*OUT, ABSENT, OK, OK, OK), (*OUT, ABSENT, OK, OK, OK)
    ),
    "admin/(?P<url>.*)$": Page(NOTHING_THERE, NOTHING_THERE),
    "admin/auth/user/<id>/password/": Page(
        CHANGE,
        CHANGE,
        body={"password1": "correct horse 1", "password2": "correct horse 1"},
        changes=True,
    ),
    "admin/controlplane/notificationaddress/<path:object_id>/edit/": Page(
        CHANGE, CHANGE, body={"url": "json://other.example.org"}, changes=True
    ),
    "admin/controlplane/notificationrule/<path:object_id>/edit/": Page(
        CHANGE, CHANGE, body=RULE_BODY, changes=True
    ),
    "admin/controlplane/job/activity/": Page(READ, READ, "cell=cell-ready&kind=failed"),
    "admin/controlplane/job/usage/": Page(READ, READ, "month=2031-05&by=job"),
    "admin/controlplane/job/usage/file/": Page(READ, READ, "month=2031-05&by=job"),
    "admin/controlplane/pool/queue/": Page(READ, READ),
    "admin/controlplane/pool/<id:pool_id>/queue/": Page(READ, READ),
    "admin/controlplane/attempt/<uuid:uid>/artifacts/<path:name>": Page(READ, READ),
    "admin/controlplane/attempt/<uuid:uid>/output/<str:stream>": Page(READ, READ),
    "admin/controlplane/attempt/<uuid:uid>/images/<path:name>": Page(READ, READ),
}


# Pages of the own account. The token of the request is that of another user.
ACCOUNT: Mapping[str, Page] = {
    "account/": Page(EVERY_USER, (LOGIN, *(METHOD,) * 5)),
    "account/logout/": Page((METHOD,) * 6, (LOGIN,) * 6),
    # The users of this test have no password.
    "account/password/": Page(NOT_OWN, NOT_OWN),
    "account/tokens/new/": Page(EVERY_USER, EVERY_USER, body={"name": ""}),
    "account/tokens/<id:token_id>/revoke/": Page(NOT_OWN, NOT_OWN),
}


class Forms(NamedTuple):
    """What an operator does with the rows of a model: forms, and actions with their bodies."""

    add: bool = False
    change: bool = False
    delete: bool = False
    actions: Mapping[str, Mapping[str, Any]] = {}


MODELS: Mapping[str, Forms] = {
    "auth/group": Forms(add=True, change=True, delete=True),
    "auth/user": Forms(add=True, change=True, delete=True, actions={"reset_second_factor": {}}),
    "controlplane/alert": Forms(actions={"close_alerts": {}}),
    "controlplane/apitoken": Forms(add=True, actions={"revoke": {}}),
    "controlplane/attempt": Forms(actions={"release_attempts": {}}),
    "controlplane/auditline": Forms(),
    "controlplane/bulkoperation": Forms(add=True, actions={"stop_operations": {}}),
    "controlplane/cacheentry": Forms(actions={"evict_entries": {}}),
    "controlplane/callback": Forms(actions={"deliver_again": {}}),
    "controlplane/cell": Forms(
        actions={
            "drain": {},
            "change_deadline": {},
            "cordon": {},
            "uncordon": {},
            "unquarantine": {},
            "enrolment": {
                "pool": "gpu",
                "node_labels": "",
                "max_capacity": "",
                "fixed_tags": "*",
            },
            "revoke": {},
        }
    ),
    "controlplane/deadletter": Forms(),
    "controlplane/domain": Forms(),
    "controlplane/job": Forms(
        actions={
            "hold_jobs": {},
            "release_jobs": {},
            "move_to_front": {},
            "move_to_end": {},
            "change_band": {"band": "batch"},
            "cancel_jobs": {},
            "retry_jobs": {},
            "delete_jobs": {},
        }
    ),
    "controlplane/membership": Forms(add=True, change=True, delete=True),
    # The page of a row is no form; the form has an address of its own.
    "controlplane/notificationaddress": Forms(add=True, delete=True, actions={"send_tests": {}}),
    "controlplane/notificationmessage": Forms(),
    "controlplane/notificationrule": Forms(add=True, delete=True, actions={"send_tests": {}}),
    "controlplane/oidcidentity": Forms(add=True, actions={"unlink": {}}),
    "controlplane/oneoff": Forms(),
    "controlplane/pool": Forms(add=True, change=True, actions={"confirm_losses": {}}),
    "controlplane/project": Forms(
        add=True, actions={"hold": {}, "release": {}, "archive": {}, "unarchive": {}}
    ),
    "controlplane/quota": Forms(add=True, change=True, delete=True),
    "controlplane/schedule": Forms(
        actions={"pause": {}, "resume": {}, "run_now": {}, "delete_schedules": {}}
    ),
    "controlplane/secret": Forms(add=True, change=True, delete=True),
    "controlplane/task": Forms(),
    "controlplane/tickrun": Forms(),
    "controlplane/tickstate": Forms(),
}


def rows_of(model: str) -> dict[str, Page]:
    """The pages of a model by their URLs."""
    forms, base = MODELS[model], f"admin/{model}/"
    row = f"{base}<path:object_id>/"
    may_change = CHANGE if forms.change else NO_FORM
    may_delete = CHANGE if forms.delete else NEVER
    may_add = CHANGE if forms.add else NEVER
    # Django keeps a user with jobs, such as the one of this test. Of the others, `changes` is true.
    has_no_jobs = forms.delete and model != "auth/user"
    # A one-off task has the page of its task, to which it redirects whether it exists or not.
    may_view = EVERY_PAGE if model == "controlplane/oneoff" else READ
    return {
        base: Page(READ, READ),
        f"{base}add/": Page(may_add, may_add),
        f"{row}change/": Page(may_view, may_change),
        f"{row}delete/": Page(may_delete, may_delete, "", {"post": "yes"}, has_no_jobs),
        f"{row}history/": Page(READ, READ),
        # Leads to the page of the row, which decides.
        row: Page(EVERY_PAGE, EVERY_PAGE),
    }


def table() -> dict[str, Page]:
    """Every row by its URL."""
    found = {**PAGES, **ACCOUNT}
    for model in MODELS:
        found |= rows_of(model)
    return found


def urls_of_pages(patterns: list[Any], prefix: str = "") -> Iterator[str]:
    """The URLs of the web process below admin/ and account/, as Django writes their patterns."""
    for pattern in patterns:
        url = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from urls_of_pages(pattern.url_patterns, url)
        elif isinstance(pattern, URLPattern) and url.startswith(("admin/", "account/")):
            yield url


def test_every_url_has_a_row() -> None:
    assert set(table()) == set(urls_of_pages(get_resolver().url_patterns))


def test_every_action_has_a_row() -> None:
    found = {
        f"{model._meta.app_label}/{model._meta.model_name}": set(page.actions or ())
        for model, page in admin.site._registry.items()
    }
    assert found == {model: set(forms.actions) for model, forms in MODELS.items()}


@pytest.fixture
def attempt(installation: None, settings: Any, tmp_path: Path) -> Attempt:
    """An installation with one of everything, and an attempt with an image."""
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})
    attempt = Attempt.objects.order_by("-uid")[0]
    leave(attempt, **{"a.png": PNG})
    Pool.objects.filter(name="default").update(loss_held_at=NOW)
    held = {"reason": "test", "role": Role.OPERATOR, "actor": "olga", "now": NOW}
    hold_job(job_id=Job.objects.get(name="sweep").pk, **held)
    hold_project(project_id=Project.objects.get().pk, **held)
    ended_job()
    unreleased()
    archived = Project.objects.create(domain=Project.objects.get().domain, name="old")
    Project.objects.filter(pk=archived.pk).update(archived_at=NOW)
    owner = User.objects.get(username="ann")
    scope = MemberScope(project=Project.objects.get(name="default"))
    put_member(scope=scope, member=owner, role=Role.SUBMITTER, actor="test", now=NOW)
    paused = Schedule.objects.get()
    paused.pk, paused.name, paused.is_paused, paused.next_at = None, "paused", True, None
    paused.save()
    Cell.objects.filter(state="DRAINING").update(ordered_state="DRAINING")
    TotpDevice.objects.create(user=owner, sealed=b"", last_step=0, created_at=NOW)
    return attempt


@pytest.fixture
def browsers(attempt: Attempt) -> dict[str, Client]:
    """A browser for each role, in which its user is logged in."""
    users = {name: User.objects.create_user(name) for name in ROLES[1:]}
    scope = MemberScope(project=Project.objects.get(name="default"))
    member, auditor = users["member"], users["auditor"]
    put_member(scope=scope, member=member, role=Role.MANAGER, actor="test", now=NOW)
    put_member(scope=INSTALLATION, member=auditor, role=None, actor="test", now=NOW)
    staff = ["staff", "viewer", "operator"]
    User.objects.filter(username__in=staff).update(is_staff=True)
    User.objects.filter(username="operator").update(is_superuser=True)
    views = Permission.objects.filter(codename__startswith="view_")
    users["viewer"].user_permissions.set(views)
    found = {name: Client() for name in ROLES}
    for name, user in users.items():
        found[name].force_login(user)
    return found


def address_of(url: str, attempt: Attempt) -> str:
    """An address of the URL, for a row that exists."""
    base = url.partition("<")[0]
    if "<path:object_id>" in url and "content_type" not in url:
        app, name = base.split("/")[1:3]
        row: Any = apps.get_model(app, name)._default_manager.order_by("pk").first()
        url = url.replace("<path:object_id>", str(row.pk))
    content_type = ContentType.objects.get_for_model(Job).pk
    for pattern, value in {
        "<id>": User.objects.get(username="ann").pk,
        "<uuid:uid>": attempt.pk,
        "<path:name>": "a.png",
        "<str:stream>": "stderr",
        "<id:pool_id>": Pool.objects.get(name="default").pk,
        "<id:token_id>": ApiToken.objects.get(user__username="ann").pk,
        "<path:content_type_id>": content_type,
        "<path:object_id>": Job.objects.earliest("pk").pk,
        "^(?P<app_label>controlplane|auth)/$": "controlplane/",
        "(?P<url>.*)$": "no-such-page/",
    }.items():
        url = url.replace(pattern, str(value))
    return f"/{url}"


def body_of(row: Page) -> dict[str, Any]:
    """The body of the POST to a page."""
    if "address" not in row.body:
        return dict(row.body)
    return {**row.body, "address": str(NotificationAddress.objects.earliest("pk").pk)}


def outcome(answer: Any) -> str | int:
    """The status of a refusal, LOGIN for a redirect to the login, or OK."""
    assert answer.status_code < 500, answer.content
    if answer.status_code == 302 and answer["Location"].startswith("/admin/login/"):
        is_second_factor = answer["Location"].startswith("/admin/login/second-factor/")
        return OK if is_second_factor else LOGIN
    return answer.status_code if answer.status_code >= 400 else OK


def stored_rows() -> dict[str, list[str]]:
    """Every row of every table but those of sessions."""
    return {
        model.__name__: sorted(repr(row) for row in model._default_manager.values_list())
        for model in apps.get_models()
        if model is not Session
    }


def changed_tables(before: Mapping[str, list[str]]) -> set[str]:
    """The tables whose rows differ from those before."""
    now = stored_rows()
    return {name for name in now if now[name] != before[name]}


@contextmanager
def undone(browser: Client) -> Iterator[Client]:
    """A browser with the same session; undo what its requests change, sessions too."""
    copied = Client()
    copied.cookies = deepcopy(browser.cookies)
    with transaction.atomic():
        yield copied
        transaction.set_rollback(True)


def bodies_of_actions(model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each action of a model with the bodies that run it, one for each row."""
    forms, kind = MODELS[model], apps.get_model(*model.split("/"))
    for row in kind._default_manager.order_by("pk"):
        chosen = {"_selected_action": [str(row.pk)]}
        for name, fields in forms.actions.items():
            yield name, {**chosen, "action": name, "confirmed": "yes", "reason": "test", **fields}
        yield "delete_selected", {**chosen, "action": "delete_selected", "post": "yes"}


@pytest.mark.parametrize("role", ROLES)
def test_role_decides_what_a_page_permits(
    browsers: dict[str, Client], attempt: Attempt, role: str
) -> None:
    position, expected, found = ROLES.index(role), {}, {}
    before = stored_rows()
    for url, row in table().items():
        address = address_of(url, attempt)
        expected["GET", url], expected["POST", url] = row.get[position], row.post[position]
        # The operator changes what the next rows need, and a logout ends the session.
        is_undone = role == "operator" or url in ("admin/logout/", "account/logout/")
        with undone(browsers[role]) if is_undone else nullcontext(browsers[role]) as browser:
            found["GET", url] = outcome(browser.get(f"{address}?{row.query}"))
            found["POST", url] = outcome(browser.post(address, body_of(row)))
    assert changed_tables(before) == set()
    wrong = {key: (found[key], value) for key, value in expected.items() if found[key] != value}
    assert wrong == {}, "found, expected"


@pytest.mark.parametrize("role", [role for role in ROLES if role != "operator"])
def test_only_operators_run_actions(
    browsers: dict[str, Client], installation: None, role: str
) -> None:
    browser, before = browsers[role], stored_rows()
    refusal = LOGIN if role in ("anonymous", "member") else DENIED
    for model in MODELS:
        for name, body in bodies_of_actions(model):
            assert outcome(browser.post(f"/admin/{model}/", body)) == refusal, (model, name)
    assert changed_tables(before) == set()


def test_operator_changes_rows_by_every_action_and_deletion(
    browsers: dict[str, Client], attempt: Attempt
) -> None:
    before, changed = stored_rows(), set()
    expected = {(model, name) for model, forms in MODELS.items() for name in forms.actions}
    expected |= {(model, "delete_selected") for model, forms in MODELS.items() if forms.delete}
    for model in MODELS:
        for name, body in bodies_of_actions(model):
            if (model, name) not in expected - changed:
                continue
            with undone(browsers["operator"]) as browser:
                browser.post(f"/admin/{model}/", body)
                changed |= {(model, name)} if changed_tables(before) else set()
    assert changed == expected
    for url, row in table().items():
        if row.changes:
            with undone(browsers["operator"]) as browser:
                browser.post(address_of(url, attempt), body_of(row))
                assert changed_tables(before) != set(), url
