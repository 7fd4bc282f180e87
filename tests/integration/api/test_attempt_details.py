"""Lists of attempts show what they need of an attempt's details, and load no more of them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from controlplane.models import Attempt, Cell, Task
from controlplane.queries.views import attempts
from tests.integration.api.conftest import Caller
from tests.integration.api.test_reading import place, submit

DETAILS = {
    "addresses": {"http": "10.0.0.1:4711"},
    "plugin_phase": "halfway",
    "plugin_state": {"large": "x" * 1_000},
    "outputs": [{"name": "a", "size": 1, "sha256": "0" * 64, "uri": "s3://b/a"}],
}


@pytest.fixture
def attempt(submitter: Caller, make_cell: Callable[..., Cell]) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), make_cell(), details=DETAILS)


def test_attempt_list_loads_only_addresses_and_phase_of_the_details(
    monkeypatch: pytest.MonkeyPatch, submitter: Caller, attempt: Attempt
) -> None:
    loaded: list[Any] = []

    def named_rows(statement: str, values: list[Any]) -> list[Any]:
        found = original(statement, values)
        loaded.extend(found)
        return found

    original = attempts.named_rows
    monkeypatch.setattr(attempts, "named_rows", named_rows)
    (document,) = submitter.get(f"/tasks/{attempt.task_id}/attempts").json["results"]
    assert (document["addresses"], document["plugin_phase"]) == (DETAILS["addresses"], "halfway")
    assert loaded
    assert "large" not in str(loaded)
    Attempt.objects.update(details=None)
    document = submitter.get(f"/attempts/{attempt.uid}").json
    assert (document["addresses"], document["plugin_phase"]) == ({}, None)


def test_admin_list_does_not_load_details(submitter: Caller, attempt: Attempt) -> None:
    request = RequestFactory().get("/")
    request.user = submitter.user
    changes = admin.site._registry[Attempt].get_changelist_instance
    with CaptureQueriesContext(
        connection,
    ) as caught:
        assert [row.pk for row in changes(request).result_list] == [attempt.pk]
    assert not [query for query in caught.captured_queries if '"details"' in query["sql"]]
