"""Login with an OpenID provider: a real one on loopback, honest or hostile, and real sessions."""

import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http import HttpResponse
from django.test import Client

from controlplane.admin.login import form as login
from controlplane.limits.buckets import Buckets
from controlplane.models import AuditLine, OidcIdentity, Project, ServiceAccount
from tests.harness.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    LIFE_SECONDS,
    OTHER_KEY,
    Claims,
    Provider,
    compact,
    encode,
    serve_provider,
    sign,
)
from tests.integration.admin.test_login import Clock, events
from tests.integration.admin.test_pages import address_of

pytestmark = pytest.mark.django_db

START, CALLBACK = "/admin/login/oidc/", "/admin/login/oidc/callback/"
PUBLIC_URL = "http://web.example:8000"
FAILED = "The login with single sign-on failed. Try again."


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serve_provider(PUBLIC_URL + CALLBACK) as found:
        yield found


@pytest.fixture(autouse=True)
def configure(
    provider: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Change settings of the login, which is on."""
    monkeypatch.setattr(login, "_attempts", Buckets(now=Clock()))

    def change(**values: Any) -> None:
        settings.CELLRUN = settings.CELLRUN.model_copy(update=values)

    change(
        public_url=PUBLIC_URL,
        oidc_issuer=provider.issuer,
        oidc_client_id=CLIENT_ID,
        oidc_client_secret=CLIENT_SECRET,
        oidc_operator_groups=("operators",),
    )
    return change


def begin(browser: Client, following: str = "/admin/") -> str:
    """Return the address of the provider to which the browser is sent."""
    answer = browser.get(START, {"next": following})
    assert answer.status_code == 302
    return str(answer["Location"])


def authorize(address: str) -> str:
    """Return path and query with which the provider returns the browser."""
    answer = requests.get(address, allow_redirects=False, timeout=10)
    assert answer.status_code == 302, answer.text
    return answer.headers["Location"].removeprefix(PUBLIC_URL)


def log_in(browser: Client | None = None, following: str = "/admin/") -> HttpResponse:
    """Log in with the provider, and return the response to the callback."""
    browser = browser or Client(REMOTE_ADDR="10.0.0.1")
    return browser.get(authorize(begin(browser, following)))


def is_refused(answer: HttpResponse) -> bool:
    """Return whether no session was started, and the browser is at the login page."""
    is_back = answer.status_code == 302 and answer["Location"] == "/admin/login/"
    assert "_auth_user_id" not in answer.wsgi_request.session
    return is_back


def text_of(answer: HttpResponse) -> str:
    """Return the text of the login page after a refusal."""
    browser = Client()
    browser.cookies = answer.client.cookies  # type: ignore[attr-defined]
    return str(browser.get(answer["Location"]).content.decode())


def be(provider: Provider, **claims: Any) -> None:
    provider.user = {"sub": "s-1", "preferred_username": "user-7", **claims}


def test_a_member_of_an_operators_group_logs_in_as_a_new_operator(provider: Provider) -> None:
    be(provider, groups=["operators"])
    browser = Client()
    answer = log_in(browser, "/admin/controlplane/job/")
    assert (answer.status_code, answer["Location"]) == (302, "/admin/controlplane/job/")
    user = User.objects.get(username="user-7")
    assert (user.is_superuser, user.is_staff, user.has_usable_password()) == (True, True, False)
    assert browser.get("/admin/").status_code == 200
    link = OidcIdentity.objects.get()
    assert (link.user, link.issuer, link.subject) == (user, provider.issuer, "s-1")
    assert answer.cookies["sessionid"]["max-age"] == 12 * 3600


def test_the_second_login_is_of_the_same_user_whatever_its_name(provider: Provider) -> None:
    be(provider, groups=["operators"])
    log_in()
    be(provider, groups=["operators"], preferred_username="renamed-7")
    assert log_in()["Location"] == "/admin/"
    assert User.objects.get().username == "user-7"


@pytest.mark.parametrize("local", ["user-7", "USER-7"])
def test_a_local_user_of_the_same_name_and_address_is_not_taken_over(
    provider: Provider, local: str
) -> None:
    owner = User.objects.create_superuser(local, email="user-7@example.org", password="x")
    be(provider, email="user-7@example.org", email_verified=True)
    assert log_in()["Location"] == "/account/"
    link = OidcIdentity.objects.get()
    assert link.user != owner
    assert link.user.username.startswith("user-7-")
    assert not link.user.is_staff
    owner.refresh_from_db()
    assert owner.check_password("x")


def test_subjects_of_two_issuers_are_two_users(provider: Provider) -> None:
    other = User.objects.create_superuser("user-8")
    OidcIdentity.objects.create(
        user=other, issuer="https://other.example", subject="s-1", created_at="2026-01-01T00:00Z"
    )
    log_in()
    link = OidcIdentity.objects.get(issuer=provider.issuer)
    assert link.user.username == "user-7"


def test_a_subject_is_case_sensitive(provider: Provider) -> None:
    log_in()
    be(provider, sub="S-1", preferred_username="user-9")
    log_in()
    assert sorted(User.objects.values_list("username", flat=True)) == ["user-7", "user-9"]


def test_an_inactive_user_is_refused_and_keeps_its_groups(provider: Provider) -> None:
    be(provider, groups=["operators"])
    log_in()
    User.objects.update(is_active=False, is_superuser=False)
    answer = log_in()
    assert is_refused(answer)
    assert "the user is deactivated" in text_of(answer)
    assert not User.objects.get().is_superuser


def test_an_unknown_user_is_refused_if_users_are_not_created(
    provider: Provider, configure: Callable[..., None]
) -> None:
    configure(oidc_create_users=False)
    be(provider, groups=["operators"])
    assert is_refused(log_in())
    assert not User.objects.exists()
    user = User.objects.create_user("user-1")
    OidcIdentity.objects.create(
        user=user, issuer=provider.issuer, subject="s-1", created_at="2026-01-01T00:00Z"
    )
    assert log_in()["Location"] == "/admin/"


def test_a_new_user_creates_a_token_that_the_api_accepts(provider: Provider) -> None:
    browser = Client(REMOTE_ADDR="10.0.0.1")
    page = browser.get(log_in(browser)["Location"])
    assert page.wsgi_request.path == "/account/"
    assert "user-7" in page.content.decode()
    body = {"name": "laptop", "role": "submitter", "days": "30"}
    [clear] = re.findall(
        r"cr_[\w-]{43}", browser.post("/account/tokens/new/", body).content.decode()
    )
    api = Client(headers={"Authorization": f"Bearer {clear}"})
    whoami = api.get("/api/v1/whoami").json()
    assert (whoami["user"], whoami["role"], whoami["roles"]) == ("user-7", "submitter", [])
    lines = AuditLine.objects.filter(actor="user-7").order_by("pk")
    assert [(line.action, line.via, line.address) for line in lines] == [
        ("log_in.user", "session", "10.0.0.1"),
        ("create.token", "session", "10.0.0.1"),
    ]


def test_a_user_deactivated_after_the_login_has_no_session(provider: Provider) -> None:
    browser = Client()
    log_in(browser)
    assert browser.get("/account/").status_code == 200
    User.objects.update(is_active=False)
    assert browser.get("/account/")["Location"] == "/admin/login/?next=/account/"


def test_an_operator_links_and_unlinks_a_user(
    provider: Provider, configure: Callable[..., None], operator: Client
) -> None:
    configure(oidc_create_users=False)
    owner, page = User.objects.create_user("user-1", is_staff=True), address_of(OidcIdentity)
    assert f'value="{provider.issuer}"' in operator.get(f"{page}add/").content.decode()
    link = {"user": str(owner.pk), "issuer": provider.issuer, "subject": "s-1"}
    assert operator.post(f"{page}add/", link).status_code == 302
    assert "already exists" in operator.post(f"{page}add/", link).content.decode()
    assert log_in()["Location"] == "/admin/"
    made = OidcIdentity.objects.get(issuer=provider.issuer)
    chosen = {"action": "unlink", "_selected_action": [str(made.pk)], "confirmed": "yes"}
    operator.post(page, chosen)
    assert is_refused(log_in())
    lines = AuditLine.objects.filter(subject="user user-1", actor="olga").order_by("pk")
    assert [(line.action, line.text) for line in lines] == [
        ("link.identity", f"to s-1 of {provider.issuer}"),
        ("unlink.identity", f"from s-1 of {provider.issuer}"),
    ]


def test_a_service_account_is_neither_linked_nor_logged_in(
    provider: Provider, operator: Client
) -> None:
    robot = User.objects.create_user("robot", is_staff=True)
    project = Project.objects.get(name="default")
    ServiceAccount.objects.create(user=robot, project=project, created_at="2026-01-01T00:00Z")
    link = {"user": str(robot.pk), "issuer": provider.issuer, "subject": "s-1"}
    refused = operator.post(f"{address_of(OidcIdentity)}add/", link)
    assert "service accounts cannot log in" in refused.content.decode()
    assert not OidcIdentity.objects.filter(user=robot).exists()
    OidcIdentity.objects.create(
        user=robot, issuer=provider.issuer, subject="s-1", created_at="2026-01-01T00:00Z"
    )
    be(provider, groups=["operators"])
    answer = log_in()
    assert is_refused(answer)
    assert "service accounts cannot log in" in text_of(answer)
    robot.refresh_from_db()
    assert not robot.is_superuser


def test_only_operators_link_users(onlooker: Client) -> None:
    user = User.objects.get(username="otto")
    user.user_permissions.set(Permission.objects.filter(codename__endswith="_oidcidentity"))
    root = User.objects.create_superuser("root")
    link = {"user": str(root.pk), "issuer": "https://a.example", "subject": "s-1"}
    assert onlooker.post(f"{address_of(OidcIdentity)}add/", link).status_code == 403
    assert not OidcIdentity.objects.filter(user=root).exists()


def test_a_login_deletes_expired_sessions(provider: Provider) -> None:
    old = SessionStore()
    old.set_expiry(-60)
    old.save()
    begin(Client())
    assert not Session.objects.filter(pk=old.session_key).exists()


def groups() -> set[str]:
    return set(User.objects.get(username="user-7").groups.values_list("name", flat=True))


def test_groups_follow_the_claim_and_others_remain(
    provider: Provider, configure: Callable[..., None]
) -> None:
    configure(oidc_groups=(("team a", "research"), ("team-b", "operations"), ("all", "research")))
    be(provider, groups=["team a", "team-b", "team-c"])
    log_in()
    assert groups() == {"research", "operations"}
    User.objects.get().groups.add(Group.objects.create(name="by hand"))
    be(provider, groups=["all"])
    log_in()
    assert groups() == {"research", "by hand"}
    be(provider)
    log_in()
    assert groups() == {"by hand"}
    lines = AuditLine.objects.filter(action="change.user").order_by("pk")
    assert [line.text for line in lines] == [
        "joined operations, joined research",
        "left operations",
        "left research",
    ]


def test_groups_may_come_from_userinfo_and_another_claim(
    provider: Provider, configure: Callable[..., None]
) -> None:
    configure(oidc_groups=(("team-a", "research"),), oidc_groups_claim="roles")
    provider.userinfo = {"sub": "s-1", "roles": "team-a"}
    log_in()
    assert groups() == {"research"}


def test_an_operator_without_the_group_is_none_after_the_next_login(provider: Provider) -> None:
    be(provider, groups=["operators"])
    browser = Client()
    log_in(browser)
    be(provider, groups=["others"])
    assert log_in()["Location"] == "/account/"
    user = User.objects.get()
    assert (user.is_superuser, user.is_staff) == (False, False)
    assert browser.get("/admin/").status_code == 302  # the first session, too


def test_a_user_with_manual_access_keeps_it(provider: Provider) -> None:
    log_in()
    User.objects.update(is_staff=True)
    assert log_in()["Location"] == "/admin/"
    assert User.objects.get().is_staff


def test_logins_change_no_operators_without_the_setting(
    provider: Provider, configure: Callable[..., None]
) -> None:
    configure(oidc_operator_groups=())
    be(provider, groups=["operators"])
    log_in()
    assert not User.objects.get().is_superuser
    User.objects.update(is_staff=True, is_superuser=True)
    log_in()
    assert User.objects.get().is_superuser


def resign(header: Claims) -> Callable[[Claims], str]:
    """Return a function that signs nothing, with this header."""
    return lambda claims: f"{compact(header)}.{compact(claims)}."


def hs256(claims: Claims) -> str:
    """Sign with the secret of the client, which is no key of the provider."""
    text = f"{compact({'alg': 'HS256', 'kid': 'key-1'})}.{compact(claims)}"
    return f"{text}.{encode(hmac.digest(CLIENT_SECRET.encode(), text.encode(), hashlib.sha256))}"


CHANGES: dict[str, Callable[[Claims], Claims]] = {
    "wrong nonce": lambda token: {**token, "nonce": "another"},
    "no nonce": lambda token: without(token, "nonce"),
    "wrong audience": lambda token: {**token, "aud": "another-client"},
    "wrong audience for this party": lambda token: {
        **token,
        "aud": ["another-client"],
        "azp": CLIENT_ID,
    },
    "audiences for another party": lambda token: {
        **token,
        "aud": [CLIENT_ID, "another-client"],
        "azp": "another-client",
    },
    "no audience": lambda token: without(token, "aud"),
    "empty audience": lambda token: {**token, "aud": []},
    "wrong issuer": lambda token: {**token, "iss": "https://another.example"},
    "no issuer": lambda token: without(token, "iss"),
    "expired": lambda token: {**token, "exp": token["exp"] - LIFE_SECONDS - 60},
    "no end": lambda token: without(token, "exp"),
    "end as text": lambda token: {**token, "exp": str(token["exp"])},
    "from the future": lambda token: {**token, "iat": token["iat"] + 3600},
    "no subject": lambda token: without(token, "sub"),
    "empty subject": lambda token: {**token, "sub": ""},
    "subject is a number": lambda token: {**token, "sub": 1},
    "subject is too long": lambda token: {**token, "sub": "s" * 256},
    "groups are a mapping": lambda token: {**token, "groups": {"operators": True}},
}

SIGNATURES: dict[str, Callable[[Claims], str | None]] = {
    "alg none": resign({"alg": "none"}),
    "alg none with the id of the key": resign({"alg": "none", "kid": "key-1"}),
    "alg NONE": resign({"alg": "NONE", "kid": "key-1"}),
    "no alg": resign({"kid": "key-1"}),
    "empty signature": resign({"alg": "RS256", "kid": "key-1"}),
    "another key": lambda claims: sign(claims, OTHER_KEY),
    "another content": lambda claims: altered(sign(claims), compact({**claims, "sub": "s-2"})),
    "secret of the client": hs256,
    "no id_token": lambda claims: None,
    "no token at all": lambda claims: "nonsense",
}


def without(token: Claims, name: str) -> Claims:
    return {key: value for key, value in token.items() if key != name}


def altered(token: str, content: str) -> str:
    header, _, signature = token.split(".")
    return f"{header}.{content}.{signature}"


def check_refused(provider: Provider) -> None:
    """Check that a login with what is now the provider's behaviour fails, and leaves nothing."""
    provider.userinfo = {"sub": provider.user["sub"]}
    answer = log_in()
    assert is_refused(answer)
    assert FAILED in text_of(answer)
    assert not User.objects.exists()
    line = AuditLine.objects.get(action="refuse.login")
    assert (line.actor, line.action) == ("unknown (OpenID)", "refuse.login")
    assert line.text.startswith("from 10.0.0.1, with OpenID: ")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_token_with_wrong_claims_is_refused(
    provider: Provider, change: Callable[[Claims], Claims]
) -> None:
    be(provider, groups=["operators"])
    provider.change_token = change
    check_refused(provider)


@pytest.mark.parametrize("signing", SIGNATURES.values(), ids=SIGNATURES.keys())
@pytest.mark.parametrize("announced", [["RS256"], ["none", "HS256", "RS256"]], ids=str)
def test_a_token_without_a_signature_of_the_provider_is_refused(
    provider: Provider, signing: Callable[[Claims], str | None], announced: list[str]
) -> None:
    be(provider, groups=["operators"])
    provider.sign = signing
    name = "id_token_signing_alg_values_supported"
    provider.change_configuration = lambda found: {**found, name: announced}
    check_refused(provider)


def test_claims_of_another_user_from_userinfo_are_refused(provider: Provider) -> None:
    provider.userinfo = {"sub": "s-2", "groups": ["operators"]}
    assert is_refused(log_in())
    assert not User.objects.exists()


def test_a_provider_of_another_issuer_is_refused(provider: Provider) -> None:
    provider.change_configuration = lambda found: {**found, "issuer": "https://another.example"}
    answer = Client().get(START)
    assert is_refused(answer)
    assert "does not answer as expected" in text_of(answer)


def test_an_issuer_with_a_slash_at_its_end_is_the_same(
    provider: Provider, configure: Callable[..., None]
) -> None:
    configure(oidc_issuer=provider.issuer + "/")
    be(provider, groups=["operators"])
    assert log_in()["Location"] == "/admin/"


def test_a_provider_that_does_not_answer_leads_back_to_the_login(
    configure: Callable[..., None],
) -> None:
    configure(oidc_issuer="http://127.0.0.1:1")
    answer = Client().get(START)
    assert is_refused(answer)
    assert "does not answer as expected" in text_of(answer)


def test_a_replayed_response_is_refused(provider: Provider) -> None:
    be(provider, groups=["operators"])
    browser = Client()
    path = authorize(begin(browser))
    assert browser.get(path)["Location"] == "/admin/"
    browser.logout()
    assert is_refused(browser.get(path))
    assert provider.refusals == []  # without a state, the code is not sent again


def test_a_replayed_code_is_refused_by_the_provider(provider: Provider) -> None:
    be(provider, groups=["operators"])
    browser, other = Client(), Client()
    path = authorize(begin(browser))
    assert browser.get(path)["Location"] == "/admin/"
    (code,) = parse_qs(urlsplit(path).query)["code"]
    state = parse_qs(urlsplit(begin(other)).query)["state"][0]
    assert is_refused(other.get(CALLBACK, {"code": code, "state": state}))
    assert provider.refusals == ["invalid_grant"]


def test_a_stolen_code_is_useless_without_its_verifier(provider: Provider) -> None:
    be(provider, groups=["operators"])
    victim, thief = Client(), Client()
    (code,) = parse_qs(urlsplit(authorize(begin(victim))).query)["code"]
    state = parse_qs(urlsplit(begin(thief)).query)["state"][0]
    assert is_refused(thief.get(CALLBACK, {"code": code, "state": state}))
    assert provider.refusals == ["invalid_grant"]


@pytest.mark.parametrize("query", ["", "code=x", "code=x&state=y", "error=access_denied", "state="])
def test_a_response_without_the_state_of_the_browser_is_refused(
    provider: Provider, query: str
) -> None:
    browser = Client()
    begin(browser)
    assert is_refused(browser.get(f"{CALLBACK}?{query}"))


def test_the_response_of_another_browser_is_refused(provider: Provider) -> None:
    be(provider, groups=["operators"])
    attacker, victim = Client(), Client()
    path = authorize(begin(attacker))
    begin(victim)
    assert is_refused(victim.get(path))


@pytest.mark.parametrize("following", ["https://evil.example/", "//evil.example", "javascript:x"])
def test_the_login_leads_to_no_other_site(provider: Provider, following: str) -> None:
    be(provider, groups=["operators"])
    assert log_in(following=following)["Location"] == "/admin/"


def test_a_login_is_logged_and_audited(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    be(provider, groups=["operators"])
    with caplog.at_level(logging.DEBUG):
        log_in()
    lines = [(line.actor, line.action, line.text) for line in AuditLine.objects.order_by("pk")]
    assert lines == [
        ("OpenID login", "create.user", f"for s-1 of {provider.issuer}"),
        ("OpenID login", "change.user", "is an operator now"),
        ("user-7", "log_in.user", "from 10.0.0.1, with OpenID"),
    ]
    (event,) = events(caplog, "logged_in")
    assert (event["user"], event["address"], event["detail"]) == (
        "user-7",
        "10.0.0.1",
        "with OpenID",
    )
    assert CLIENT_SECRET not in caplog.text


def test_a_refused_user_is_audited_by_name(provider: Provider) -> None:
    log_in()
    User.objects.update(is_active=False)
    assert is_refused(log_in())
    line = AuditLine.objects.get(action="refuse.login")
    assert line.actor == "user-7"
    assert line.text == (
        f"from 10.0.0.1, with OpenID (s-1 of {provider.issuer}): the user is deactivated"
    )


def test_failed_logins_of_an_address_are_limited_and_fill_no_table(provider: Provider) -> None:
    browser = Client(REMOTE_ADDR="10.0.0.7")
    for _ in range(40):
        browser.get(CALLBACK, {"code": "x", "state": "y"})
    assert AuditLine.objects.count() == 30
    be(provider, groups=["operators"])
    answer = browser.get(START)
    assert is_refused(answer)
    assert "Too many failed logins. Try again in 10 s." in text_of(answer)
    assert log_in(Client(REMOTE_ADDR="10.0.0.8"))["Location"] == "/admin/"


def test_successful_logins_are_not_limited(provider: Provider) -> None:
    be(provider, groups=["operators"])
    assert all(log_in()["Location"] == "/admin/" for _ in range(17))


def test_the_login_page_offers_the_provider_only_if_there_is_one(
    configure: Callable[..., None],
) -> None:
    page = Client().get("/admin/login/", {"next": "/admin/controlplane/job/?q=a&b=c"})
    link = "/admin/login/oidc/?next=%2Fadmin%2Fcontrolplane%2Fjob%2F%3Fq%3Da%26b%3Dc"
    assert f'href="{link}"' in page.content.decode()
    configure(oidc_client_secret="")
    assert "/admin/login/oidc/" not in Client().get("/admin/login/").content.decode()
    assert Client().get(START).status_code == 404
    assert Client().get(CALLBACK, {"code": "x", "state": "y"}).status_code == 404
