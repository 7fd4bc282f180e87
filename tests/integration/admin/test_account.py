"""The own account: what it shows, tokens created and revoked there, and users without access."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpResponse
from django.test import Client

from controlplane import clock
from controlplane.admin.login import form as login
from controlplane.admin.login.pages import POLICY
from controlplane.commands.tenancy.members import INSTALLATION, put_member
from controlplane.commands.tenancy.tokens import create_api_token, digest_of
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import (
    ApiToken,
    AuditLine,
    Domain,
    Membership,
    Project,
    ServiceAccount,
    UsageTotal,
)
from tests.harness.members import admit
from tests.integration.admin.test_login import PASSWORD
from tests.integration.admin.test_pages import words

pytestmark = pytest.mark.django_db

ACCOUNT, NEW = "/account/", "/account/tokens/new/"
LOGIN = "/admin/login/?next="


@pytest.fixture(autouse=True)
def research(monkeypatch: pytest.MonkeyPatch) -> Domain:
    """The domain `research` with the projects `a` and `b`, and full buckets of logins."""
    monkeypatch.setattr(login, "_attempts", Buckets())
    domain = Domain.objects.create(name="research")
    for name in ("a", "b"):
        Project.objects.create(domain=domain, name=name)
    return domain


@pytest.fixture
def user() -> User:
    """A user with a password and a role on one project."""
    found = User.objects.create_user("user-1", password=PASSWORD)
    admit(found, Role.SUBMITTER, "a", domain="research")
    return found


@pytest.fixture
def browser(user: User) -> Client:
    """The browser of the user."""
    return browser_of(user)


def browser_of(user: User, **options: Any) -> Client:
    found = Client(REMOTE_ADDR="10.0.0.1", **options)
    found.force_login(user)
    return found


def key_of(project: str) -> str:
    return str(Project.objects.get(name=project).pk)


def create(browser: Client, **fields: Any) -> HttpResponse:
    body = {"name": "laptop", "role": "submitter", "days": "90", **fields}
    return browser.post(NEW, body)


def text_in(answer: HttpResponse) -> str:
    """The text of the new token in a response."""
    assert answer.status_code == 200
    [clear] = re.findall(r"cr_[\w-]{43}", answer.content.decode())
    return clear


def read(browser: Client, path: str = ACCOUNT) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200
    return words(answer.content.decode())


def refusal_of(answer: HttpResponse) -> str:
    """The text of a form that was refused, after which there is no such token."""
    assert answer.status_code == 200
    assert not ApiToken.objects.filter(name="laptop").exists()
    return words(answer.content.decode())


def call(token: str, path: str, method: str = "GET") -> Any:
    client = Client(headers={"Authorization": f"Bearer {token}"})
    return client.generic(method, f"/api/v1{path}")


def paths_of_account(token: ApiToken) -> Iterator[str]:
    yield from (ACCOUNT, NEW, "/account/password/", f"/account/tokens/{token.pk}/revoke/")


def own_token(user: User, name: str = "old", **fields: Any) -> ApiToken:
    """A token of the user in the table."""
    create_api_token(user=user, name=name, role=Role.SUBMITTER, now=clock.now(), **fields)
    return ApiToken.objects.get(user=user, name=name)


def test_a_token_is_created_and_its_text_is_shown_once(browser: Client, user: User) -> None:
    answer = create(browser, role="viewer", days="30", projects=[key_of("a")])
    clear = text_in(answer)
    assert "no-store" in answer["Cache-Control"]
    token = ApiToken.objects.get()
    assert (token.user, token.role, token.digest) == (user, "viewer", digest_of(clear))
    assert token.expires_at == token.created_at + timedelta(days=30)
    shown = read(browser)
    assert clear not in shown
    assert f"laptop {clear[:8]}… viewer research/a" in shown
    whoami = call(clear, "/whoami").json()
    assert (whoami["user"], whoami["token"]["projects"]) == ("user-1", ["research/a"])
    line = AuditLine.objects.get(action="create.token")
    assert (line.actor, line.via, line.address) == ("user-1", "session", "10.0.0.1")
    assert line.subject == "token laptop of user-1"
    assert clear not in str(vars(line))


def test_a_token_without_selected_projects_is_for_all(browser: Client) -> None:
    token = text_in(create(browser))
    assert call(token, "/whoami").json()["token"]["projects"] is None
    assert "submitter all your projects" in read(browser)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"role": "operator"}, "operator is not one of the available choices"),
        ({"role": ""}, "This field is required"),
        ({"days": "366"}, "less than or equal to 365"),
        ({"days": "0"}, "greater than or equal to 1"),
        ({"name": ""}, "This field is required"),
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"name": "a\tb"}, "Control characters are not permitted"),
    ],
)
def test_a_refused_token_is_explained_in_the_form(
    browser: Client, changes: dict[str, str], expected: str
) -> None:
    assert expected in refusal_of(create(browser, **changes))
    assert not ApiToken.objects.exists()


def test_a_second_token_of_a_name_is_explained_in_the_form(browser: Client) -> None:
    create(browser)
    answer = words(create(browser).content.decode())
    assert "user-1 has a token with the name laptop already" in answer
    assert ApiToken.objects.count() == 1


def test_a_token_is_not_limited_to_a_project_without_a_role(browser: Client) -> None:
    form = read(browser, NEW)
    assert "research/a" in form
    assert "research/b" not in form
    refused = refusal_of(create(browser, projects=[key_of("a"), key_of("b")]))
    assert f"{key_of('b')} is not one of the available choices" in refused
    missing = str(Project.objects.latest("pk").pk + 1)
    phrase = "{} is not one of the available choices"
    assert refused.replace(phrase.format(key_of("b")), phrase.format(missing)) == refusal_of(
        create(browser, projects=[key_of("a"), missing])
    )


def test_an_operator_may_grant_more(research: Domain) -> None:
    browser = browser_of(User.objects.create_superuser("user-9"))
    form = read(browser, NEW)
    assert "research/a" in form
    assert "research/b" in form
    token = text_in(create(browser, role="operator", days="1000"))
    assert call(token, "/whoami").json()["installation"] == "operator"
    refused = create(browser, name="b", role="operator", days="9", projects=[key_of("a")])
    assert "cannot have the role operator" in words(refused.content.decode())


def test_the_form_offers_as_many_projects_as_a_token_may_have(research: Domain) -> None:
    names = (f"n{number:03}" for number in range(99))
    Project.objects.bulk_create(Project(domain=research, name=name) for name in names)
    form = read(browser_of(User.objects.create_superuser("user-9")), NEW)
    assert "research/n097" in form
    assert "research/n098" not in form
    assert "The list has the first 100" in form


def test_a_token_is_revoked_after_a_confirmation(browser: Client) -> None:
    clear = text_in(create(browser))
    path = f"/account/tokens/{ApiToken.objects.get().pk}/revoke/"
    assert "A revoked token cannot be restored" in read(browser, path)
    assert call(clear, "/whoami").status_code == 200
    assert browser.post(path)["Location"] == ACCOUNT
    assert call(clear, "/whoami").status_code == 401
    assert "The token laptop is revoked." in read(browser)
    line = AuditLine.objects.get(action="revoke.token")
    assert (line.actor, line.via, line.subject) == ("user-1", "session", "token laptop of user-1")
    assert browser.post(path).status_code == 404


@pytest.mark.parametrize("role", ["member", "manager", "operator"])
def test_tokens_of_others_do_not_exist(user: User, role: str) -> None:
    """A manager may revoke the token with the API, and an operator in the admin."""
    project = Project.objects.get(name="a")
    foreign = own_token(user, "foreign", bound_to=[project.pk])
    other = User.objects.create_user("user-2", is_superuser=role == "operator")
    if role == "manager":
        admit(other, Role.MANAGER, "a", domain="research")
    browser, path = browser_of(other), f"/account/tokens/{foreign.pk}/revoke/"
    assert "foreign" not in read(browser)
    answers = [browser.get(path), browser.post(path)]
    missing = f"/account/tokens/{foreign.pk + 1}/revoke/"
    answers += [browser.get(missing), browser.post(missing)]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert len({answer.content for answer in answers}) == 1
    assert ApiToken.objects.filter(pk=foreign.pk).exists()


def test_the_page_shows_the_roles_of_its_user_only(browser: Client, user: User) -> None:
    other = User.objects.create_user("user-2")
    admit(other, Role.MANAGER, "b", domain="research")
    domain = Domain.objects.create(name="sales")
    admit(user, Role.VIEWER, domain="sales")
    shown = read(browser)
    assert "user-1" in shown
    assert "project research/a submitter" in shown
    assert f"all projects of the domain {domain.name} viewer" in shown
    for hidden in ("user-2", "research/b", "manager", "installation"):
        assert hidden not in shown


def test_a_project_of_a_token_has_no_name_after_the_role_is_removed(
    browser: Client, user: User
) -> None:
    admit(user, Role.SUBMITTER, "b", domain="research")
    text_in(create(browser, projects=[key_of("a"), key_of("b")]))
    assert "submitter research/a, research/b" in read(browser)
    Membership.objects.filter(project__name="b").delete()
    shown = read(browser)
    assert "submitter research/a, 1 project without a role of yours" in shown
    assert "research/b" not in shown
    revocation = read(browser, f"/account/tokens/{ApiToken.objects.get().pk}/revoke/")
    assert "research/b" not in revocation


def test_a_user_without_a_role_sees_what_is_missing() -> None:
    shown = read(browser_of(User.objects.create_user("user-3")))
    assert "You have no role yet." in shown
    assert "You have no API tokens." in shown


def test_roles_on_the_installation_are_shown() -> None:
    auditor = User.objects.create_user("user-4")
    put_member(scope=INSTALLATION, member=auditor, role=None, actor="test", now=clock.now())
    assert "You are auditor of this installation." in read(browser_of(auditor))
    operator = User.objects.create_superuser("user-5")
    assert "You are operator of this installation." in read(browser_of(operator))


def test_expired_tokens_are_marked(browser: Client, user: User) -> None:
    own_token(user, expires_at=clock.now() + timedelta(minutes=1))
    assert "expired" not in read(browser)
    ApiToken.objects.update(expires_at=clock.now() - timedelta(minutes=1))
    assert "expired" in read(browser)


def test_pages_of_tokens_are_complete(browser: Client, user: User) -> None:
    for number in range(51):
        own_token(user, f"n{number:02}")
    first = browser.get(ACCOUNT).content.decode()
    [older] = re.findall(r'href="(\?before=\d+)"', first)
    second = browser.get(ACCOUNT + older).content.decode()
    names = re.findall(r"\bn\d\d\b(?= <code>)", first) + re.findall(r"\bn\d\d\b(?= <code>)", second)
    assert names == [f"n{number:02}" for number in reversed(range(51))]
    assert "before=" not in second
    assert browser.get(f"{ACCOUNT}?before=x").status_code == 200
    assert browser.get(f"{ACCOUNT}?before={'9' * 40}").status_code == 200


def test_names_are_escaped(user: User) -> None:
    own_token(user, "<script>alert(1)</script>")
    browser = browser_of(user)
    for path in (ACCOUNT, f"/account/tokens/{ApiToken.objects.get().pk}/revoke/"):
        assert "<script" not in browser.get(path).content.decode()


def test_pages_run_no_scripts_and_are_not_stored(browser: Client, user: User) -> None:
    for path in paths_of_account(own_token(user)):
        answer = browser.get(path)
        assert answer["Content-Security-Policy"] == POLICY
        assert "no-store" in answer["Cache-Control"]


def test_pages_lead_to_the_login_without_a_session(user: User) -> None:
    token = own_token(user)
    for path in paths_of_account(token):
        for answer in (Client().get(path), Client().post(path, {"name": "x"})):
            assert (answer.status_code, answer["Location"]) == (302, f"{LOGIN}{path}")
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize("kind", ["inactive", "service account"])
def test_a_user_that_may_have_no_session_has_no_access(user: User, kind: str) -> None:
    token, browser = own_token(user), browser_of(user)
    assert browser.get(ACCOUNT).status_code == 200
    if kind == "inactive":
        User.objects.update(is_active=False)
    else:
        project = Project.objects.get(name="a")
        ServiceAccount.objects.create(user=user, project=project, created_at=clock.now())
    for path in paths_of_account(token):
        assert browser.get(path)["Location"] == f"{LOGIN}{path}"
        assert browser.post(path, {"name": "x"})["Location"] == f"{LOGIN}{path}"
    body = {"username": "user-1", "password": PASSWORD, "next": ACCOUNT}
    assert "sessionid" not in Client().post("/admin/login/", body).cookies
    assert ApiToken.objects.count() == 1


def test_changes_need_the_token_of_the_form(user: User) -> None:
    token, browser = own_token(user), browser_of(user, enforce_csrf_checks=True)
    revocation = f"/account/tokens/{token.pk}/revoke/"
    for path in (NEW, revocation, "/account/password/", "/account/logout/"):
        assert browser.post(path, {"name": "x", "role": "viewer", "days": 1}).status_code == 403
    assert ApiToken.objects.get() == token
    assert browser.get(ACCOUNT).status_code == 200


def test_a_logout_ends_the_session(browser: Client) -> None:
    before = Client()
    before.cookies = browser.cookies.copy()  # type: ignore[attr-defined]
    assert browser.get("/account/logout/").status_code == 405
    answer = browser.post("/account/logout/")
    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/")
    assert not Session.objects.exists()
    for client in (browser, before):
        assert client.get(ACCOUNT)["Location"] == f"{LOGIN}{ACCOUNT}"


def test_a_required_second_factor_comes_before_the_account(
    browser: Client, user: User, settings: Any
) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"require_totp": True})
    page = browser.get(NEW, follow=True)
    assert page.redirect_chain[-1][0] == "/admin/login/second-factor/"
    browser.post(NEW, {"name": "x", "role": "viewer", "days": 1})
    assert not ApiToken.objects.exists()


def test_a_local_user_changes_the_own_password(browser: Client, user: User) -> None:
    other, new = browser_of(user), "another long phrase"
    assert 'href="/account/password/"' in browser.get(ACCOUNT).content.decode()
    page = "/account/password/"
    wrong = {"old_password": "wrong", "new_password1": new, "new_password2": new}
    weak = {"old_password": PASSWORD, "new_password1": "short", "new_password2": "short"}
    assert "old password was entered incorrectly" in words(
        browser.post(page, wrong).content.decode()
    )
    assert "at least 12 characters" in words(browser.post(page, weak).content.decode())
    user.refresh_from_db()
    assert user.check_password(PASSWORD)
    assert browser.post(page, {**wrong, "old_password": PASSWORD})["Location"] == ACCOUNT
    assert "The password is changed." in read(browser)
    assert other.get(ACCOUNT)["Location"] == f"{LOGIN}{ACCOUNT}"
    line = AuditLine.objects.get(action="change.user")
    assert (line.actor, line.via, line.text) == ("user-1", "session", "new password")
    assert new not in str(vars(line))


def give_present_password(browser: Client, password: str) -> str:
    new = "another long phrase"
    body = {"old_password": password, "new_password1": new, "new_password2": new}
    answer = browser.post("/account/password/", body)
    return words(answer.content.decode()) if answer.status_code == 200 else ""


@pytest.mark.parametrize("page", ["account", "login"])
def test_wrong_present_passwords_count_as_failed_logins(
    browser: Client, user: User, page: str
) -> None:
    for _ in range(10):
        assert "entered incorrectly" in give_present_password(browser, "wrong")
    if page == "account":
        assert "Too many failed logins" in give_present_password(browser, PASSWORD)
        user.refresh_from_db()
        assert user.check_password(PASSWORD)
    else:
        body = {"username": "user-1", "password": PASSWORD}
        assert b"Too many failed logins" in Client().post("/admin/login/", body).content
    lines = AuditLine.objects.filter(action="refuse.login")
    assert lines.count() == 10
    line = lines.latest("pk")
    assert (line.actor, line.text) == ("user-1", "from 10.0.0.1, wrong present password")


def test_a_right_present_password_is_not_limited(browser: Client, user: User) -> None:
    for _ in range(11):
        user.set_password(PASSWORD)
        user.save()
        browser.force_login(user)
        assert give_present_password(browser, PASSWORD) == ""


def test_the_admin_has_no_other_form_of_the_own_password(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=True)
    page = browser_of(user)
    for answer in (
        page.get("/admin/password_change/"),
        page.post("/admin/password_change/", {"old_password": PASSWORD}),
    ):
        assert (answer.status_code, answer["Location"]) == (302, "/account/password/")
    assert 'href="/account/password/"' in page.get("/admin/").content.decode()


def test_a_user_of_a_provider_has_no_password_to_change() -> None:
    browser = browser_of(User.objects.create_user("user-2"))
    assert "/account/password/" not in browser.get(ACCOUNT).content.decode()
    for answer in (browser.get("/account/password/"), browser.post("/account/password/")):
        assert answer.status_code == 404


def test_users_of_the_admin_have_a_link_in_their_menu(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=True)
    browser = browser_of(user)
    assert 'href="/account/"' in browser.get("/admin/").content.decode()
    assert 'href="/admin/"' in browser.get(ACCOUNT).content.decode()
    User.objects.filter(pk=user.pk).update(is_staff=False)
    assert 'href="/admin/"' not in browser.get(ACCOUNT).content.decode()


def test_own_attempts_of_this_month_are_added_up(browser: Client, user: User) -> None:
    """12 core hours in two projects, 3 of them used; not those of others and of other months."""
    month = clock.now().date().replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    for at, owner, project in (
        (month, "user-1", "a"),
        (month, "user-1", "b"),
        (month, "user-2", "a"),
        (before, "user-1", "a"),
    ):
        UsageTotal.objects.create(
            month=at, project=Project.objects.get(name=project), owner=owner, job_name="x",
            attempts=5, cpu_seconds_requested=6 * 3600, cpu_seconds_used=1.5 * 3600,
            memory_mib_seconds_requested=1024 * 3600, memory_mib_seconds_used=512 * 3600,
        )  # fmt: skip
    text = words(browser.get(ACCOUNT).content.decode())
    assert "The 10 attempts of your ended jobs requested 12 core h and used 3 core h" in text
    assert "requested 2 GiB h of memory and used at most 1 GiB h" in text


def test_user_without_released_attempts_has_no_usage(browser: Client) -> None:
    assert "Usage in" not in words(browser.get(ACCOUNT).content.decode())
