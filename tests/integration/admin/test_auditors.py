"""Auditors log in to the admin without being staff, view every page, and change nothing."""

import pytest
from django.contrib.auth.models import Group, User
from django.db import models
from django.test import Client

from controlplane.admin.login import form
from controlplane.commands.tenancy.members import INSTALLATION, MemberScope, put_member
from controlplane.commands.tenancy.service_accounts import put_service_account
from controlplane.domain.roles import Role
from controlplane.models import Cell, OneOff, Pool, Project
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import MODELS, address_of

PASSWORD = "correct horse battery"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_limits() -> None:
    """No failed logins of other tests."""
    form._attempts.__init__()  # type: ignore[misc]


@pytest.fixture
def auditor(installation: None) -> User:
    """A member of a group that audits the installation."""
    group = Group.objects.create(name="auditors")
    user = User.objects.create_user("auditor-1", password=PASSWORD)
    user.groups.add(group)
    put_member(scope=INSTALLATION, member=group, role=None, actor="test", now=NOW)
    return user


def log_in(name: str) -> Client:
    """A browser that has sent the login form."""
    browser = Client()
    browser.post("/admin/login/", {"username": name, "password": PASSWORD})
    return browser


def is_admitted(browser: Client) -> bool:
    """Whether the overview answers, not the login."""
    return browser.get("/admin/").status_code == 200


def test_auditor_logs_in_until_the_role_is_removed(auditor: User) -> None:
    browser = log_in("auditor-1")
    assert is_admitted(browser)
    auditor.groups.clear()
    assert not is_admitted(browser)
    assert not is_admitted(log_in("auditor-1"))


def test_auditor_views_every_page(auditor: User) -> None:
    browser = log_in("auditor-1")
    kinds: list[type[models.Model]] = [*MODELS]
    for model in kinds:
        assert browser.get(address_of(model)).status_code == 200, model
        row = model._default_manager.first()
        answer = browser.get(address_of(model, row), follow=model is OneOff)
        assert answer.status_code == 200, model
    assert browser.get("/admin/auth/user/").status_code == 200


def test_auditor_changes_nothing(auditor: User) -> None:
    browser = log_in("auditor-1")
    for model in MODELS:
        assert browser.get(f"{address_of(model)}add/").status_code == 403, model
    pool, cell = Pool.objects.earliest("pk"), Cell.objects.earliest("pk")
    answer = browser.post(address_of(Pool, pool), {"name": "renamed"})
    assert answer.status_code == 403
    state = cell.state
    chosen = {"action": "cordon", "_selected_action": [str(cell.pk)], "confirmed": "yes"}
    browser.post(address_of(Cell), chosen)
    cell.refresh_from_db()
    assert cell.state == state
    user = browser.post(f"/admin/auth/user/{auditor.pk}/change/", {"is_superuser": "on"})
    assert user.status_code == 403
    auditor.refresh_from_db()
    assert not auditor.is_superuser


def test_manager_of_a_project_does_not_log_in(installation: None) -> None:
    user = User.objects.create_user("manager-1", password=PASSWORD)
    scope = MemberScope(project=Project.objects.earliest("pk"))
    put_member(scope=scope, member=user, role=Role.MANAGER, actor="test", now=NOW)
    assert not is_admitted(log_in("manager-1"))


def test_service_account_does_not_log_in_even_with_a_password(installation: None) -> None:
    project = Project.objects.earliest("pk")
    put_service_account(project=project, name="robot-1", role=Role.MANAGER, actor="test", now=NOW)
    user = User.objects.get(username="robot-1")
    user.set_password(PASSWORD)
    user.is_staff = user.is_superuser = True
    user.save()
    assert not is_admitted(log_in("robot-1"))
