"""Sessions end, or lose what they permitted, with the request after a change of their user."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from controlplane import clock
from controlplane.commands.tenancy.accounts import put_user
from controlplane.commands.tenancy.members import INSTALLATION, put_member, remove_member
from controlplane.domain.roles import Role
from controlplane.models import Domain, Membership, Project
from tests.harness.members import admit
from tests.integration.admin.test_login import PASSWORD

pytestmark = pytest.mark.django_db

NEW_PASSWORD = "another long phrase"
ACCOUNT, ADMIN, JOBS = "/account/", "/admin/", "/admin/controlplane/job/"


@pytest.fixture
def user() -> User:
    return User.objects.create_user("user-1", password=PASSWORD)


@pytest.fixture
def browser(user: User) -> Client:
    found = Client()
    found.force_login(user)
    return found


def may_open(browser: Client, path: str) -> bool:
    return browser.get(path).status_code == 200


def change_in_admin(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Client()
    operator.force_login(User.objects.create_superuser("user-2"))
    body = {"usable_password": "true", "password1": NEW_PASSWORD, "password2": NEW_PASSWORD}
    assert operator.post(f"/admin/auth/user/{user.pk}/password/", body).status_code == 302


def change_with_bootstrap(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_ADMIN_USER", user.username)
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD", NEW_PASSWORD)
    call_command("bootstrap", quiet=True)


def change_with_changepassword(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: NEW_PASSWORD)
    call_command("changepassword", user.username)


@pytest.mark.parametrize(
    "change", [change_in_admin, change_with_bootstrap, change_with_changepassword]
)
def test_a_new_password_ends_sessions(
    browser: Client,
    user: User,
    change: Callable[[User, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert may_open(browser, ACCOUNT)
    change(user, monkeypatch)
    user.refresh_from_db()
    assert user.check_password(NEW_PASSWORD)
    assert not may_open(browser, ACCOUNT)


def test_a_deactivated_user_has_no_session(browser: Client, user: User) -> None:
    assert may_open(browser, ACCOUNT)
    put_user(name=user.username, is_active=False, actor="user-2", now=clock.now())
    assert not may_open(browser, ACCOUNT)


def test_a_lost_role_on_the_installation_closes_the_admin(browser: Client, user: User) -> None:
    put_member(scope=INSTALLATION, member=user, role=None, actor="user-2", now=clock.now())
    assert may_open(browser, JOBS)
    remove_member(scope=INSTALLATION, member=user, actor="user-2", now=clock.now())
    assert not may_open(browser, JOBS)
    assert may_open(browser, ACCOUNT)


@pytest.mark.parametrize("lost", ["is_superuser", "is_staff"])
def test_a_former_operator_changes_nothing(browser: Client, user: User, lost: str) -> None:
    User.objects.update(is_superuser=True, is_staff=True)
    assert may_open(browser, "/admin/controlplane/pool/add/")
    User.objects.update(**{lost: False})
    assert not may_open(browser, "/admin/controlplane/pool/add/")
    assert may_open(browser, ADMIN) == (lost == "is_superuser")


def test_a_lost_role_on_a_project_limits_new_tokens_at_once(browser: Client, user: User) -> None:
    Project.objects.create(domain=Domain.objects.create(name="research"), name="a")
    admit(user, Role.SUBMITTER, "a", domain="research")
    assert b"research/a" in browser.get("/account/tokens/new/").content
    Membership.objects.all().delete()
    assert b"research/a" not in browser.get("/account/tokens/new/").content
