"""A default quota limits each user, project or domain that has no quota of its own."""

from typing import Any

import pytest
from django.core.management import call_command

from controlplane.models import Pool, Quota
from tests.integration.api.conftest import Caller, check_described

JOB: dict[str, Any] = {"name": "a", "image": "busybox", "command": ["true"]}


def put(operator: Caller, subject: str, **limits: Any) -> Any:
    answer = operator.put(f"/quotas/{subject}", limits)
    assert answer.status == 200
    return answer.json


def test_operator_sets_and_removes_a_default_quota(operator: Caller, submitter: Caller) -> None:
    made = put(operator, "default/user", running_tasks=5, resources={"cpu": 2})
    check_described("Quota", made)
    assert (made["kind"], made["name"], made["running_tasks"]) == ("default", "user", 5)
    assert submitter.get("/quotas/default/user").json == made
    assert [it["name"] for it in submitter.get("/quotas?kind=default").json["results"]] == ["user"]
    assert put(operator, "default/user", **made) == made
    put(operator, "default/user", running_tasks=None, resources=None)
    assert not Quota.objects.exists()


def test_default_quota_is_shown_for_a_user_without_one(operator: Caller, submitter: Caller) -> None:
    put(operator, "default/user", running_tasks=5, highest_band="production")
    shown = submitter.get("/quotas/user/ann").json
    check_described("Quota", shown)
    assert (shown["running_tasks"], shown["highest_band"]) == (5, "production")
    assert shown["is_default"] is True
    assert submitter.get("/quotas/project/default").json["running_tasks"] is None


def test_own_quota_begins_with_the_default_and_replaces_it(
    operator: Caller, submitter: Caller
) -> None:
    put(operator, "default/user", running_tasks=5, highest_band="production")
    put(operator, "user/ann", weight=2)
    put(operator, "default/user", running_tasks=7)
    shown = submitter.get("/quotas/user/ann").json
    assert (shown["running_tasks"], shown["weight"], shown["is_default"]) == (5, 2.0, False)
    assert put(operator, "user/ann", running_tasks=None)["running_tasks"] is None
    assert operator.get("/quotas/user/olga").json["running_tasks"] == 7


def test_quota_equal_to_the_default_is_removed(operator: Caller, submitter: Caller) -> None:
    put(operator, "default/user", running_tasks=5)
    put(operator, "user/ann", running_tasks=6)
    assert put(operator, "user/ann", running_tasks=5)["is_default"] is True
    assert Quota.objects.count() == 1


def test_job_above_the_default_quota_is_refused(operator: Caller, submitter: Caller) -> None:
    put(operator, "default/project", resources={"cpu": 2})
    body = {**JOB, "resources": {"cpu": 3}}
    for path in ("/jobs", "/jobs:dry-run"):
        refused = submitter.post(path, body)
        assert (refused.status, list(refused.faults)) == (422, ["resources.cpu"])
        text = refused.faults["resources.cpu"]
        assert text.startswith("default quota of project default/default: ")
    put(operator, "project/default", resources={"cpu": 4})
    assert submitter.post("/jobs", body).status == 201


@pytest.mark.parametrize(("subject", "status"), [("default/team", 404), ("default/user", 403)])
def test_wrong_kind_and_caller_are_refused(
    operator: Caller, submitter: Caller, subject: str, status: int
) -> None:
    caller = submitter if status == 403 else operator
    assert caller.put(f"/quotas/{subject}", {"running_tasks": 1}).status == status
    assert not Quota.objects.exists()


def test_new_installation_has_defaults_that_bootstrap_does_not_restore(
    monkeypatch: pytest.MonkeyPatch, operator: Caller
) -> None:
    Pool.objects.all().delete()
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD", "correct horse battery")
    call_command("bootstrap", quiet=True)
    shown = {it["name"]: it["running_tasks"] for it in operator.get("/quotas").json["results"]}
    assert shown == {"user": 10_000, "project": 20_000}
    assert Pool.objects.get().sequencer == "fair_projects"
    Pool.objects.update(sequencer="lifo")
    for kind in shown:
        put(operator, f"default/{kind}", running_tasks=None)
    call_command("bootstrap", quiet=True)
    assert operator.get("/quotas").json["results"] == []
    assert Pool.objects.get().sequencer == "lifo"
