"""Second factors of local users: setup, login, recovery codes, reset; codes computed here."""

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client

from controlplane import clock
from controlplane.admin.login import form as login
from controlplane.admin.login.pages import POLICY
from controlplane.commands.tenancy.totp import enroll_totp, use_code
from controlplane.limits.buckets import Buckets
from controlplane.models import AuditLine, RecoveryCode, TotpDevice
from tests.integration.admin.test_login import PASSWORD, events
from tests.integration.admin.test_login import Clock as BucketClock
from tests.integration.admin.test_pages import words

pytestmark = pytest.mark.django_db

CODE_PAGE, SETUP_PAGE = "/admin/login/code/", "/admin/login/second-factor/"
KEY = b"key-of-twenty-bytes!"
WRONG = "The code is wrong, or was used before."


def code_at(at: datetime, key: bytes = KEY) -> str:
    """Compute a code by RFC 6238."""
    counter = int(at.timestamp()) // 30
    digest = hmac.digest(key, counter.to_bytes(8, "big"), hashlib.sha1)
    start = digest[-1] & 15
    number = int.from_bytes(digest[start : start + 4], "big") & 0x7FFFFFFF
    return f"{number % 1_000_000:06}"


class Time:
    """The clock of the control plane in a test."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 26, 12, 0, 5, tzinfo=UTC)

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def code(self, key: bytes = KEY) -> str:
        return code_at(self.now, key)


@pytest.fixture
def time() -> Iterator[Time]:
    found = Time()
    clock.use(lambda: found.now)
    yield found
    clock.use(None)


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> BucketClock:
    found = BucketClock()
    monkeypatch.setattr(login, "_attempts", Buckets(now=found))
    return found


@pytest.fixture(autouse=True)
def user(time: Time, buckets: BucketClock) -> User:
    return User.objects.create_superuser("user-1", password=PASSWORD)


@pytest.fixture
def codes(user: User, time: Time) -> list[str]:
    """Give the user a second factor, and return the recovery codes."""
    found = enroll_totp(user=user, key=KEY, code=time.code(), now=time.now)
    assert found is not None
    time.pass_seconds(60)
    return found


@pytest.fixture
def require(settings: Any) -> Callable[[], None]:
    def change() -> None:
        settings.CELLRUN = settings.CELLRUN.model_copy(update={"require_totp": True})

    return change


def give_password(browser: Client, following: str = "/admin/controlplane/job/") -> HttpResponse:
    body = {"username": "user-1", "password": PASSWORD, "next": following}
    return browser.post("/admin/login/", body)


def has_session(browser: Client) -> bool:
    """Return whether the browser may use the admin."""
    return browser.get("/admin/").status_code == 200


def log_in(browser: Client, code: str) -> HttpResponse:
    assert give_password(browser)["Location"] == CODE_PAGE
    assert not has_session(browser)
    return browser.post(CODE_PAGE, {"code": code})


def test_a_login_needs_password_and_code(codes: list[str], time: Time) -> None:
    browser = Client(REMOTE_ADDR="10.0.0.1")
    answer = log_in(browser, time.code())
    assert (answer.status_code, answer["Location"]) == (302, "/admin/controlplane/job/")
    assert answer.cookies["sessionid"]["max-age"] == 12 * 3600
    assert has_session(browser)
    line = AuditLine.objects.get(action="log_in.user")
    expected = ("user-1", "log_in.user", "from 10.0.0.1, with a code")
    assert (line.actor, line.action, line.text) == expected


def test_the_session_has_a_new_id_after_the_code(codes: list[str], time: Time) -> None:
    browser = Client()
    give_password(browser)
    before = browser.cookies["sessionid"].value
    browser.post(CODE_PAGE, {"code": time.code()})
    assert browser.cookies["sessionid"].value != before


def test_a_code_is_accepted_once(codes: list[str], time: Time) -> None:
    assert log_in(Client(), time.code()).status_code == 302
    assert WRONG in words(log_in(Client(), time.code()).content.decode())
    time.pass_seconds(30)
    earlier = code_at(time.now - timedelta(seconds=30))
    assert log_in(Client(), earlier).status_code == 200  # valid by the clock, and used
    assert log_in(Client(), time.code()).status_code == 302


def test_an_earlier_code_than_the_last_is_refused(codes: list[str], time: Time, user: User) -> None:
    earlier, now = code_at(time.now - timedelta(seconds=30)), time.now
    assert use_code(user_id=user.pk, code=time.code(), now=now)
    assert use_code(user_id=user.pk, code=earlier, now=now) is None


def test_the_code_of_the_setup_does_not_log_in(user: User, time: Time) -> None:
    assert enroll_totp(user=user, key=KEY, code=time.code(), now=time.now)
    assert log_in(Client(), time.code()).status_code == 200


@pytest.mark.parametrize("code", ["000000", "", "12345", "x" * 41, "a\0b", "é", "aaaa-aaaa"])
def test_a_wrong_code_opens_no_session(
    codes: list[str], time: Time, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert code != time.code()
    browser = Client(REMOTE_ADDR="10.0.0.9")
    answer = log_in(browser, code)
    assert answer.status_code == 200
    assert not has_session(browser)
    if code and len(code) <= 40 and "\0" not in code:
        line = AuditLine.objects.get(action="refuse.login")
        expected = ("user-1", "refuse.login", "from 10.0.0.9, wrong code")
        assert (line.actor, line.action, line.text) == expected
        assert [event["user"] for event in events(caplog, "login_failed")] == ["user-1"]


def test_a_recovery_code_is_accepted_once(codes: list[str]) -> None:
    assert len(set(codes)) == 10
    assert log_in(Client(), codes[0].upper()).status_code == 302
    assert (
        AuditLine.objects.get(action="log_in.user").text == "from 127.0.0.1, with a recovery code"
    )
    assert log_in(Client(), codes[0]).status_code == 200
    assert log_in(Client(), codes[1].replace("-", "")).status_code == 302


def test_the_database_has_neither_key_nor_recovery_codes(codes: list[str]) -> None:
    stored = (
        bytes(TotpDevice.objects.get().sealed) + repr(list(RecoveryCode.objects.values())).encode()
    )
    assert KEY not in stored
    for code in codes:
        assert code.encode() not in stored
        assert code.replace("-", "").encode() not in stored


def test_wrong_codes_count_as_failed_logins(
    codes: list[str], time: Time, buckets: BucketClock
) -> None:
    browser = Client()
    give_password(browser)
    for _ in range(10):
        browser.post(CODE_PAGE, {"code": "000000"})
    answer = browser.post(CODE_PAGE, {"code": time.code()})
    assert b"Too many failed logins. Try again in 60 s." in answer.content
    assert b"Too many failed logins" in give_password(Client(REMOTE_ADDR="10.0.0.3")).content
    buckets.seconds += 60
    assert browser.post(CODE_PAGE, {"code": time.code()}).status_code == 302


def test_a_password_alone_does_not_refill_the_codes(codes: list[str]) -> None:
    browser = Client()
    for _ in range(10):
        give_password(browser)
        browser.post(CODE_PAGE, {"code": "000000"})
    assert AuditLine.objects.filter(action="refuse.login").count() == 10
    assert b"Too many failed logins" in give_password(browser).content


def test_a_pending_login_ends_after_ten_minutes(codes: list[str], time: Time) -> None:
    browser = Client()
    answer = give_password(browser)
    assert answer.cookies["sessionid"]["max-age"] == 600
    time.pass_seconds(601)
    assert browser.get(CODE_PAGE)["Location"] == "/admin/login/"
    assert browser.post(CODE_PAGE, {"code": time.code()})["Location"] == "/admin/login/"
    assert not has_session(browser)


@pytest.mark.parametrize("change", ["password", "is_active"])
def test_a_pending_login_ends_with_the_rights_of_its_user(
    codes: list[str], time: Time, user: User, change: str
) -> None:
    browser = Client()
    give_password(browser)
    if change == "password":
        user.set_password("another long phrase")
    else:
        setattr(user, change, False)
    user.save()
    assert browser.post(CODE_PAGE, {"code": time.code()})["Location"] == "/admin/login/"
    assert not has_session(browser)


def test_a_user_without_access_to_the_admin_has_a_second_factor_for_the_account(
    user: User, time: Time
) -> None:
    User.objects.update(is_staff=False, is_superuser=False)
    browser = Client()
    browser.force_login(user)
    assert 'href="/account/"' in browser.get(SETUP_PAGE).content.decode()
    answer = browser.post(SETUP_PAGE, {"code": time.code(key_on(browser.get(SETUP_PAGE)))})
    [recovery, *_] = codes_on(answer)
    assert 'href="/account/"' in answer.content.decode()
    browser = Client()
    assert give_password(browser)["Location"] == CODE_PAGE
    assert browser.get("/account/").status_code == 302
    assert browser.post(CODE_PAGE, {"code": recovery})["Location"] == "/account/"
    assert browser.get("/account/").status_code == 200


def test_a_required_second_factor_is_set_up_before_the_account(
    require: Callable[[], None], time: Time
) -> None:
    User.objects.update(is_staff=False, is_superuser=False)
    require()
    browser = Client()
    assert give_password(browser)["Location"] == SETUP_PAGE
    assert browser.get("/account/").status_code == 302
    browser.post(SETUP_PAGE, {"code": time.code(key_on(browser.get(SETUP_PAGE)))})
    assert browser.get("/account/").status_code == 200


def test_pages_of_the_second_factor_need_a_login() -> None:
    assert Client().get(CODE_PAGE)["Location"] == "/admin/login/"
    assert Client().get(SETUP_PAGE)["Location"] == f"/admin/login/?next={SETUP_PAGE}"


def test_the_login_leads_to_no_other_site(codes: list[str], time: Time) -> None:
    browser = Client()
    give_password(browser, "https://evil.example/")
    assert browser.post(CODE_PAGE, {"code": time.code()})["Location"] == "/admin/"


def key_on(answer: HttpResponse) -> bytes:
    """Return the key that the page shows."""
    (text,) = re.findall(r'<code class="login-key">([A-Z2-7 ]+)</code>', answer.content.decode())
    return base64.b32decode(text.replace(" ", ""))


def codes_on(answer: HttpResponse) -> list[str]:
    return re.findall(r"\b(?:[a-z2-7]{4}-){3}[a-z2-7]{4}\b", answer.content.decode())


def test_a_user_sets_up_a_second_factor(time: Time, user: User) -> None:
    browser = Client()
    assert give_password(browser)["Location"] == "/admin/controlplane/job/"
    assert SETUP_PAGE in browser.get("/admin/").content.decode()
    page = browser.get(SETUP_PAGE)
    key = key_on(page)
    assert len(key) == 20
    assert "<svg" in page.content.decode()
    assert browser.post(SETUP_PAGE, {"code": "000000"}).status_code == 200
    assert not TotpDevice.objects.exists()
    answer = browser.post(SETUP_PAGE, {"code": time.code(key)})
    found = codes_on(answer)
    assert len(found) == 10
    assert "no-store" in answer["Cache-Control"]
    assert has_session(browser)
    time.pass_seconds(30)
    assert log_in(Client(), time.code(key)).status_code == 302
    assert log_in(Client(), found[3]).status_code == 302
    line = AuditLine.objects.get(action="set_up.second_factor")
    assert (line.actor, line.subject) == ("user-1", "user user-1")


def test_each_visit_of_the_setup_has_a_new_key_that_no_other_session_knows(time: Time) -> None:
    first, second = Client(), Client()
    give_password(first)
    give_password(second)
    earlier, other = key_on(first.get(SETUP_PAGE)), key_on(second.get(SETUP_PAGE))
    key = key_on(first.get(SETUP_PAGE))
    assert len({earlier, other, key}) == 3
    for wrong in (earlier, other):
        first.post(SETUP_PAGE, {"code": time.code(wrong)})
        assert not TotpDevice.objects.exists()
    first.post(SETUP_PAGE, {"code": time.code(key)})
    assert TotpDevice.objects.exists()


def test_a_second_setup_in_another_window_changes_nothing(time: Time) -> None:
    first, second = Client(), Client()
    give_password(first)
    give_password(second)
    keys = key_on(first.get(SETUP_PAGE)), key_on(second.get(SETUP_PAGE))
    first.post(SETUP_PAGE, {"code": time.code(keys[0])})
    answer = second.post(SETUP_PAGE, {"code": time.code(keys[1])})
    assert codes_on(answer) == []
    time.pass_seconds(30)
    assert log_in(Client(), time.code(keys[0])).status_code == 302


def test_a_user_deletes_a_second_factor_only_with_a_code(codes: list[str], time: Time) -> None:
    browser = Client()
    log_in(browser, time.code())
    time.pass_seconds(30)
    assert "Unused recovery codes: 10." in words(browser.get(SETUP_PAGE).content.decode())
    assert WRONG in words(browser.post(SETUP_PAGE, {"code": "000000"}).content.decode())
    assert TotpDevice.objects.exists()
    assert browser.post(SETUP_PAGE, {"code": time.code()})["Location"] == SETUP_PAGE
    assert not TotpDevice.objects.exists()
    assert not RecoveryCode.objects.exists()
    assert give_password(Client())["Location"] == "/admin/controlplane/job/"


def test_a_required_second_factor_is_set_up_before_the_admin(
    require: Callable[[], None], time: Time
) -> None:
    require()
    browser = Client(REMOTE_ADDR="10.0.0.1")
    assert give_password(browser)["Location"] == SETUP_PAGE
    assert not has_session(browser)
    page = browser.get(SETUP_PAGE)
    assert "This installation requires a second factor" in words(page.content.decode())
    assert not has_session(browser)
    answer = browser.post(SETUP_PAGE, {"code": time.code(key_on(page))})
    assert len(codes_on(answer)) == 10
    assert 'href="/admin/controlplane/job/"' in answer.content.decode()
    assert has_session(browser)
    line = AuditLine.objects.get(action="log_in.user")
    assert line.text == "from 10.0.0.1, with a new second factor"


def test_a_requirement_counts_for_sessions_that_exist(
    require: Callable[[], None], codes: list[str], time: Time, user: User
) -> None:
    browser = Client()
    browser.force_login(user)
    require()
    assert not has_session(browser)
    answer = browser.get("/admin/", follow=True)
    assert answer.redirect_chain[-1][0] == CODE_PAGE
    assert browser.post(CODE_PAGE, {"code": time.code()})["Location"] == "/admin/"
    assert has_session(browser)


def test_a_new_second_factor_counts_for_other_sessions(user: User, time: Time) -> None:
    first, second = Client(), Client()
    give_password(first)
    give_password(second)
    key = key_on(first.get(SETUP_PAGE))
    first.post(SETUP_PAGE, {"code": time.code(key)})
    assert has_session(first)
    assert not has_session(second)
    assert second.get("/admin/", follow=True).redirect_chain[-1][0] == CODE_PAGE
    time.pass_seconds(30)
    second.post(CODE_PAGE, {"code": time.code(key)})
    assert has_session(second)


def test_the_session_that_deletes_its_second_factor_continues_and_others_end(
    codes: list[str], time: Time
) -> None:
    own, other = Client(), Client()
    log_in(own, time.code())
    log_in(other, codes[0])
    own.post(SETUP_PAGE, {"code": codes[1]})
    assert not TotpDevice.objects.exists()
    assert has_session(own)
    assert_ended(other)


@pytest.mark.parametrize("is_required", [False, True])
def test_a_reset_ends_the_sessions_of_the_second_factor(
    codes: list[str],
    time: Time,
    require: Callable[[], None],
    is_required: bool,
) -> None:
    browser = Client()
    log_in(browser, time.code())
    if is_required:
        require()
    assert has_session(browser)
    call_command("reset_totp", "user-1")
    assert_ended(browser)
    if not is_required:
        give_password(browser)
        assert has_session(browser)


def test_a_replaced_second_factor_ends_the_sessions_of_the_former(
    codes: list[str], time: Time, user: User
) -> None:
    browser = Client()
    log_in(browser, time.code())
    call_command("reset_totp", "user-1")
    enroll_totp(user=user, key=KEY, code=time.code(), now=time.now)
    time.pass_seconds(30)
    assert_ended(browser)
    assert log_in(browser, time.code()).status_code == 302
    assert has_session(browser)


def assert_ended(browser: Client) -> None:
    """Assert that a session opens no page, and that no second factor can be set up in it."""
    assert not has_session(browser)
    assert browser.get("/account/").status_code == 302
    page = browser.get("/admin/", follow=True)
    assert page.redirect_chain[-1][0].startswith("/admin/login/?next=")
    assert b'name="password"' in page.content
    assert browser.get(SETUP_PAGE)["Location"].startswith("/admin/login/")
    assert browser.get(CODE_PAGE)["Location"] == "/admin/login/"


def test_a_session_without_a_second_factor_leads_to_the_setup_if_it_is_required(
    require: Callable[[], None], time: Time, user: User
) -> None:
    browser = Client()
    browser.force_login(user)
    require()
    page = browser.get("/admin/", follow=True)
    assert page.redirect_chain[-1][0] == SETUP_PAGE
    browser.post(SETUP_PAGE, {"code": time.code(key_on(page))})
    assert has_session(browser)


def test_an_operator_resets_the_second_factor_of_another_user(codes: list[str]) -> None:
    operator = Client()
    operator.force_login(User.objects.create_superuser("user-2", password=PASSWORD))
    page = "/admin/auth/user/"
    chosen = {
        "action": "reset_second_factor",
        "_selected_action": [str(User.objects.get(username="user-1").pk)],
    }
    assert "Make sure that" in words(operator.post(page, chosen).content.decode())
    assert TotpDevice.objects.exists()
    operator.post(page, {**chosen, "confirmed": "yes"})
    assert not TotpDevice.objects.exists()
    line = AuditLine.objects.get(action="reset.second_factor")
    assert (line.actor, line.subject) == ("user-2", "user user-1")
    answer = operator.post(page, {**chosen, "confirmed": "yes"}, follow=True)
    assert "user-1 has no second factor" in words(answer.content.decode())


def test_staff_that_may_change_users_cannot_reset_a_second_factor(codes: list[str]) -> None:
    staff = User.objects.create_user("user-3", is_staff=True)
    staff.user_permissions.set(Permission.objects.filter(codename__endswith="_user"))
    browser = Client()
    browser.force_login(staff)
    key = User.objects.get(username="user-1").pk
    chosen = {"action": "reset_second_factor", "_selected_action": [str(key)]}
    browser.post("/admin/auth/user/", {**chosen, "confirmed": "yes"})
    assert TotpDevice.objects.exists()


def test_manage_py_resets_a_second_factor(
    codes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("reset_totp", "user-1")
    assert capsys.readouterr().out == "the second factor of user-1 is deleted\n"
    assert not TotpDevice.objects.exists()
    assert AuditLine.objects.get(action="reset.second_factor").actor.startswith("manage.py")
    with pytest.raises(CommandError, match="user-1 has no second factor"):
        call_command("reset_totp", "user-1")
    with pytest.raises(CommandError, match="there is no user user-9"):
        call_command("reset_totp", "user-9")


def test_a_new_secret_key_keeps_second_factors(
    codes: list[str], time: Time, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another-secret-key-" * 3
    assert log_in(Client(), time.code()).status_code == 302
    call_command("reseal_secrets")
    assert "1 second factors resealed" in capsys.readouterr().out
    settings.SECRET_KEY_FALLBACKS = []
    time.pass_seconds(30)
    assert log_in(Client(), time.code()).status_code == 302
    settings.SECRET_KEY = "a-third-secret-key-" * 3
    time.pass_seconds(30)
    answer = log_in(Client(), time.code())
    assert "another CELLRUN_SECRET_KEY: reset it" in answer.content.decode()
    with pytest.raises(CommandError, match="reset it"):
        call_command("reseal_secrets")


def test_pages_have_a_strict_policy_and_nothing_that_it_forbids(
    codes: list[str], time: Time, require: Callable[[], None]
) -> None:
    require()
    other = Client()
    User.objects.create_superuser("user-4", password=PASSWORD)
    browser = Client()
    give_password(browser)
    other.post("/admin/login/", {"username": "user-4", "password": PASSWORD})
    setup = other.get(SETUP_PAGE)
    recovery = other.post(SETUP_PAGE, {"code": time.code(key_on(setup))})
    pages = [
        Client().get("/admin/login/"),
        browser.get(CODE_PAGE),
        setup,
        recovery,
        other.get(SETUP_PAGE),
    ]
    for page in pages:
        assert page.status_code == 200
        assert page["Content-Security-Policy"] == POLICY
        assert "no-store" in page["Cache-Control"]
        html = page.content.decode()
        for forbidden in (
            "<script",
            "<style",
            " style=",
            " onclick",
            "<img",
            "http://",
            "https://",
        ):
            assert forbidden not in html


def test_passwords_and_codes_are_not_logged(
    codes: list[str], time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        log_in(Client(), "000000")
        log_in(Client(), time.code())
    assert time.code() not in caplog.text
    assert PASSWORD not in caplog.text
