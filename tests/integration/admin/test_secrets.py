"""Secrets in the operators' pages: seen by name, written, never shown."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.models import Project, Secret
from controlplane.queries.tenancy.secrets import open_secrets
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def value_of(secret: Secret) -> str:
    return open_secrets(secret.project_id, [secret.name]).values[secret.name].decode()


def test_secret_pages_omit_the_value(operator: Client) -> None:
    secret = Secret.objects.get()
    listed, shown = page(operator, address_of(Secret)), page(operator, address_of(Secret, secret))
    for html in (listed, shown):
        for text in ("token", "default", "ann", "2026-11-20"):
            assert text in words(html)
        assert "hunter2" not in html
        assert bytes(secret.sealed).hex() not in html
    assert 'type="password"' in shown


def test_value_is_replaced_and_never_shown(operator: Client) -> None:
    secret = Secret.objects.get()
    answer = operator.post(address_of(Secret, secret), {"value": " new-hunter2 "})
    assert answer.status_code == 302
    secret.refresh_from_db()
    assert value_of(secret) == " new-hunter2 "
    shown = (secret.version, secret.size, str(secret.written_by), secret.name)
    assert shown == (2, 13, "olga", "token")
    assert secret.updated_at > secret.created_at == NOW
    assert "hunter2" not in page(operator, answer["Location"])
    assert "hunter2" not in str(list(LogEntry.objects.values()))


def test_secret_pages_show_the_registry_of_a_login(operator: Client) -> None:
    secret = Secret.objects.get()
    body = '{"username": "ann", "password": "hunter2", "server": "registry.example.com"}'
    assert operator.post(address_of(Secret, secret), {"value": body}).status_code == 302
    for address in (address_of(Secret), address_of(Secret, secret)):
        html = page(operator, address)
        assert "registry.example.com" in words(html)
        assert "hunter2" not in html


def test_saving_without_a_value_writes_nothing(operator: Client) -> None:
    secret = Secret.objects.get()
    sent = {"value": "", "name": "other", "sealed": "x", "size": "7"}
    assert operator.post(address_of(Secret, secret), sent).status_code == 302
    secret.refresh_from_db()
    assert (secret.version, secret.name, value_of(secret)) == (1, "token", "hunter2")


def test_secrets_are_created_and_deleted(operator: Client) -> None:
    project = Project.objects.get().pk
    made = {"project": project, "name": "key", "value": "other-hunter2"}
    assert operator.post(f"{address_of(Secret)}add/", made).status_code == 302
    key = Secret.objects.get(name="key")
    assert (value_of(key), str(key.written_by), key.version) == ("other-hunter2", "olga", 1)
    delete = address_of(Secret, key).replace("/change/", "/delete/")
    assert operator.post(delete, {"post": "yes"}).status_code == 302
    every = {"action": "delete_selected", "_selected_action": Secret.objects.get().pk}
    assert operator.post(address_of(Secret), {**every, "post": "yes"}).status_code == 302
    assert not Secret.objects.exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "token"}, "already exists"),
        ({"name": "Token"}, "Use lower-case letters, digits"),
        ({"name": ""}, "This field is required"),
        ({"value": ""}, "This field is required"),
        ({"value": "hunter2" * 10_000}, "has more than 65536 bytes"),
    ],
)
def test_invalid_secret_is_refused_without_echoing_the_value(
    operator: Client, changes: dict[str, str], text: str
) -> None:
    sent = {"project": Project.objects.get().pk, "name": "key", "value": "hunter2", **changes}
    answer = operator.post(f"{address_of(Secret)}add/", sent)
    assert answer.status_code == 200
    assert text in answer.content.decode()
    assert "hunter2" not in answer.content.decode()
    assert Secret.objects.get().version == 1


def test_onlooker_can_view_but_not_change_secrets(onlooker: Client) -> None:
    secret = Secret.objects.get()
    assert "hunter2" not in page(onlooker, address_of(Secret, secret))
    assert onlooker.post(address_of(Secret, secret), {"value": "x"}).status_code == 403
    assert onlooker.get(f"{address_of(Secret)}add/").status_code == 403
    assert value_of(secret) == "hunter2"


def test_list_statement_count_is_constant_and_no_values_are_loaded(operator: Client) -> None:
    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as caught:
            page(operator, address_of(Secret))
        return [item["sql"] for item in caught.captured_queries]

    before = statements()
    [row] = Secret.objects.all()
    for number in range(5):
        row.pk, row.name = None, f"secret-{number}"
        row.written_by = User.objects.create_user(f"user-{number}")
        row.save()
    assert len(statements()) == len(before)
    assert not any("sealed" in statement for statement in before)
