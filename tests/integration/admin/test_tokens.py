"""Tokens in the operators' pages: created with one view of the value, listed, revoked."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from controlplane.commands.tenancy.tokens import digest_of
from controlplane.models import ApiToken, AuditLine
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def fields(**changes: str) -> dict[str, str]:
    user = str(User.objects.get(username="ann").pk)
    return {"user": user, "name": "ci", "role": "submitter", "days": "30", **changes}


def test_value_of_a_new_token_is_shown_once(operator: Client) -> None:
    answer = operator.post(f"{address_of(ApiToken)}add/", fields())
    assert answer.status_code == 200
    [clear] = re.findall(r"cr_[\w-]{43}", answer.content.decode())
    assert "no-store" in answer["Cache-Control"]
    token = ApiToken.objects.get(name="ci")
    assert (token.digest, token.role, token.user.username) == (digest_of(clear), "submitter", "ann")
    assert token.expires_at is not None
    assert token.expires_at - token.created_at == timedelta(days=30)
    for address in (address_of(ApiToken), address_of(ApiToken, token)):
        assert clear not in page(operator, address)
    assert clear not in str(list(LogEntry.objects.values()))
    line = AuditLine.objects.get(subject="token ci of ann")
    assert (line.actor, line.action, line.via) == ("olga", "create.token", "session")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"role": "operator"}, "its user is no operator"),
        ({"name": "laptop"}, "already exists"),
        ({"days": "0"}, "greater than or equal to 1"),
        ({"name": ""}, "required"),
    ],
)
def test_refused_token_is_explained_in_the_form(
    operator: Client, changes: dict[str, str], expected: str
) -> None:
    answer = operator.post(f"{address_of(ApiToken)}add/", fields(**changes))
    assert expected in words(answer.content.decode())
    assert not ApiToken.objects.filter(name="ci").exists()


def test_staff_with_the_permission_cannot_make_themselves_operators(installation: None) -> None:
    staff = User.objects.create_user("sam", is_staff=True)
    staff.user_permissions.set(Permission.objects.filter(codename__endswith="_apitoken"))
    browser = Client()
    browser.force_login(staff)
    root = User.objects.create_superuser("root", password="x")
    for changes in ({"user": str(root.pk), "role": "operator"}, {"user": str(root.pk)}):
        browser.post(f"{address_of(ApiToken)}add/", fields(**changes))
    browser.post(f"{address_of(ApiToken)}add/", fields(user=str(staff.pk), role="operator"))
    assert not ApiToken.objects.filter(name="ci").exists()


def test_tokens_are_revoked_after_a_confirmation(operator: Client) -> None:
    token = ApiToken.objects.get(name="laptop")
    chosen = {"action": "revoke", "_selected_action": [str(token.pk)]}
    shown = operator.post(address_of(ApiToken), chosen)
    assert "cannot be restored" in words(shown.content.decode())
    assert ApiToken.objects.filter(pk=token.pk).exists()
    operator.post(address_of(ApiToken), {**chosen, "confirmed": "yes"})
    assert not ApiToken.objects.filter(pk=token.pk).exists()
    assert AuditLine.objects.filter(action="revoke.token", subject="token laptop of ann").exists()


def test_onlooker_sees_tokens_and_changes_none(onlooker: Client) -> None:
    token = ApiToken.objects.get(name="laptop")
    assert "cr_12345" in words(page(onlooker, address_of(ApiToken)))
    assert onlooker.get(f"{address_of(ApiToken)}add/").status_code == 403
    chosen = {"action": "revoke", "_selected_action": [str(token.pk)], "confirmed": "yes"}
    onlooker.post(address_of(ApiToken), chosen)
    assert ApiToken.objects.filter(pk=token.pk).exists()
