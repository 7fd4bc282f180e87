"""Quotas over the API: every user reads limits and usage, operators set them."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.models import AuditLine, Cell, Domain, Project, Quota, Task
from tests.integration.api.conftest import Answer, Caller, Wakes, check_described, make_caller
from tests.integration.api.test_reading import pages, place, submit

NO_LIMITS = {
    "resources": {},
    "running_tasks": None,
    "running_jobs": None,
    "pending_tasks": None,
    "stored_bytes": None,
    "weight": 1.0,
    "highest_band": "interactive",
    "is_default": False,
}
NOTHING = {
    "resources": {},
    "running_tasks": 0,
    "running_jobs": 0,
    "pending_tasks": 0,
    "stored_bytes": None,
}


def put(caller: Caller, subject: str, body: Any) -> Answer:
    return caller.put(f"/quotas/{subject}", body)


def test_user_without_a_quota_has_no_limits(submitter: Caller) -> None:
    found = submitter.get("/quotas/user/ann")
    assert found.json == {"kind": "user", "name": "ann", **NO_LIMITS, "usage": NOTHING}
    assert submitter.get("/quotas").json["results"] == []


def test_omitted_limits_are_unchanged_and_null_removes_a_limit(
    operator: Caller, submitter: Caller
) -> None:
    first = put(operator, "user/ann", {"resources": {"cpu": 4, "licence": 2}, "running_tasks": 7})
    assert first.status == 200
    expected = {**NO_LIMITS, "resources": {"cpu": 4.0, "licence": 2}, "running_tasks": 7}
    assert {name: first.json[name] for name in expected} == expected
    second = put(operator, "user/ann", {"running_jobs": 0, "weight": 2, "running_tasks": None})
    expected |= {"running_jobs": 0, "weight": 2.0, "running_tasks": None}
    assert {name: second.json[name] for name in expected} == expected
    assert submitter.get("/quotas/user/ann").json == second.json
    assert put(operator, "user/ann", second.json).json == second.json
    nothing = dict.fromkeys(NO_LIMITS)
    assert nothing.pop("is_default") is None
    assert {**put(operator, "user/ann", nothing).json, "usage": 0} == {
        "kind": "user",
        "name": "ann",
        **NO_LIMITS,
        "usage": 0,
    }
    assert not Quota.objects.exists()


@pytest.mark.parametrize(
    ("resources", "kept"),
    [
        ({"cpu": 0.5}, {"cpu_millis": 500}),
        ({"cpu": "1500m", "memory": "64Gi"}, {"cpu_millis": 1500, "memory_mib": 65536}),
        ({"memory_mib": 64, "disk_mib": 0}, {"memory_mib": 64, "disk_mib": 0}),
        ({"disk": "1Gi", "gpu": 2}, {"disk_mib": 1024, "gpu": 2}),
        ({"cpu": 0, "gpu": 0, "licence": 0}, {"cpu_millis": 0, "gpu": 0, "licence": 0}),
        ({"cpu": None, "memory": None, "licence": None}, {}),
        (None, {}),
    ],
)
def test_resources_are_named_as_in_jobs_and_cells(
    operator: Caller, resources: Any, kept: dict[str, int]
) -> None:
    answer = put(operator, "domain/default", {"resources": resources, "running_tasks": 1})
    assert (answer.status, Quota.objects.get().resources) == (200, kept)


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"resources": {"cpu": -1}}, "resources.cpu", "must not be negative"),
        ({"resources": {"cpu": "much"}}, "resources.cpu", "must be a quantity like"),
        ({"resources": {"cpu": True}}, "resources.cpu", "must be a quantity like"),
        ({"resources": {"cpu": False}}, "resources.cpu", "must be a quantity like"),
        ({"resources": {"memory": "2Ei"}}, "resources.memory", "must be at least 0 and at most"),
        ({"resources": {"memory_mib": 1.5}}, "resources.memory_mib", "must be a whole number"),
        ({"resources": {"gpu": 1 << 60}}, "resources.gpu", "must be at most 9007199254740991"),
        ({"resources": {"licence": "3"}}, "resources.licence", "must be a whole number"),
        ({"resources": {"memory": 1, "memory_mib": 1}}, "resources", "has memory twice"),
        ({"resources": {"cpu_millis": 5}}, "resources", "cpu_millis is a reserved name: use"),
        ({"resources": {"a b": 5}}, "resources", "'a b': a name must match"),
        ({"resources": {f"r{n}": 1 for n in range(65)}}, "resources", "must have at most 64 names"),
        ({"resources": [1]}, "resources", "must be a mapping"),
        ({"running_tasks": -1}, "running_tasks", "must be at least 0"),
        ({"running_jobs": "5"}, "running_jobs", "must be a whole number"),
        ({"pending_tasks": 1 << 40}, "pending_tasks", "must be at most"),
        ({"weight": 0}, "weight", "must be at least 0.001"),
        ({"weight": True}, "weight", "must be a number"),
        ({"running": 5}, "running", "unknown field"),
        ({"highest_band": "highest"}, "highest_band", "must be"),
        ({"kind": "domain"}, "kind", "must be user, as in the URL"),
        ({"name": "bob"}, "name", "must be olga, as in the URL"),
    ],
)
def test_invalid_field_is_named_and_nothing_changes(
    operator: Caller, body: Any, field: str, text: str
) -> None:
    before = put(operator, "user/olga", {"running_tasks": 3}).json
    answer = put(operator, "user/olga", {"running_tasks": 4, **body})
    assert (answer.status, list(answer.faults)) == (422, [field])
    assert answer.faults[field].startswith(text)
    assert operator.get("/quotas/user/olga").json == before


def test_project_is_addressed_with_or_without_its_domain(operator: Caller) -> None:
    lab = Domain.objects.create(name="lab")
    Project.objects.create(domain=lab, name="genes")
    assert put(operator, "project/lab/genes", {"running_tasks": 1}).json["name"] == "lab/genes"
    assert operator.get("/quotas/project/lab%2Fgenes").json["running_tasks"] == 1
    assert operator.get("/quotas/project/default").json["name"] == "default/default"
    assert put(operator, "project/default", {"name": "default"}).status == 200
    assert put(operator, "project/default", {"name": "default/default"}).status == 200


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("user/nobody", "there is no user nobody"),
        ("user/ann/x", "there is no user ann/x"),
        ("domain/none", "there is no domain none"),
        ("project/none", "there is no project default/none"),
        ("project/none/default", "there is no project none/default"),
        ("project/default/", "there is no project default/"),
        ("team/ann", "no resource has this URL, or a name in it is not valid"),
        ("user/", "no resource has this URL, or a name in it is not valid"),
        ("user/%00", "no resource has this URL, or a name in it is not valid"),
    ],
)
def test_quota_of_an_unknown_subject_is_not_found(
    operator: Caller, subject: str, text: str
) -> None:
    for answer in (
        operator.get(f"/quotas/{subject}"),
        put(operator, subject, {"running_tasks": 1}),
    ):
        assert (answer.status, answer.json["detail"]) == (404, text)
    assert not Quota.objects.exists()


def test_only_operators_can_set_quotas(
    submitter: Caller, operator: Caller, anonymous: Caller
) -> None:
    assert put(submitter, "user/ann", {"running_tasks": 100}).status == 403
    assert put(anonymous, "user/ann", {}).status == 401
    assert anonymous.get("/quotas/user/ann").status == 401
    assert submitter.get("/quotas/user/olga").status == 404
    assert operator.get("/quotas/user/olga").status == 200
    assert not Quota.objects.exists()


def test_usage_counts_held_resources_and_open_tasks_and_jobs(
    submitter: Caller, operator: Caller, make_cell: Callable[..., Cell]
) -> None:
    submit(submitter, replicas=3, resources={"cpu": 0.5, "memory": "64Mi"})
    submit(submitter)
    submit(operator)
    cell = make_cell()
    for task in Task.objects.filter(job__owner=submitter.user).order_by("id")[:2]:
        place(task, cell)
    # As effects leave the counts: two of the three run.
    group = Task.objects.order_by("id")[0].group
    group.counts = [0, 1, 0, 2, *group.counts[4:]]
    group.save()
    usage = {
        "resources": {"cpu": 1.0, "memory_mib": 128},
        "running_tasks": 2,
        "running_jobs": 1,
        "pending_tasks": 2,
        "stored_bytes": None,
    }
    assert submitter.get("/quotas/user/ann").json["usage"] == usage
    usage["pending_tasks"] = 3
    assert submitter.get("/quotas/domain/default").json["usage"] == usage
    of_project = {**usage, "stored_bytes": 0}
    assert submitter.get("/quotas/project/default").json["usage"] == of_project
    assert operator.get("/quotas/user/olga").json["usage"] == {**NOTHING, "pending_tasks": 1}


def test_quotas_are_listed_newest_first_in_pages(operator: Caller) -> None:
    make_caller("ann")
    subjects = ["user/olga", "user/ann", "project/default/default", "domain/default"]
    for each in subjects:
        put(operator, each, {"running_tasks": 1})

    def named(path: str) -> list[list[str]]:
        return [[f"{q['kind']}/{q['name']}" for q in page] for page in pages(operator, path)]

    assert named("/quotas") == [subjects[::-1]]
    assert named("/quotas?limit=3") == [subjects[:0:-1], subjects[:1]]
    assert named("/quotas?kind=user&limit=1") == [["user/ann"], ["user/olga"]]
    assert named("/quotas?kind=project") == [["project/default/default"]]
    assert operator.get("/quotas?kind=team").status == 400
    for quota in operator.get("/quotas").json["results"]:
        check_described("Quota", quota)


def test_deleted_quota_gives_way_to_the_default_quota(operator: Caller, submitter: Caller) -> None:
    put(operator, "default/user", {"running_tasks": 5})
    put(operator, "user/ann", {"running_tasks": 7, "weight": 2})
    assert operator.send("DELETE", "/quotas/user/ann").status == 204
    found = submitter.get("/quotas/user/ann").json
    assert (found["running_tasks"], found["weight"], found["is_default"]) == (5, 1.0, True)
    line = AuditLine.objects.get(action="delete.quota")
    assert (line.actor, line.subject) == ("olga", "quota of user ann")
    assert (line.before["running_tasks"], line.before["weight"]) == (7, 2.0)
    missing = operator.send("DELETE", "/quotas/user/ann")
    assert (missing.status, missing.json["detail"]) == (404, "user ann has no quota of its own")
    assert operator.send("DELETE", "/quotas/user/eve").status == 404
    assert operator.send("DELETE", "/quotas/default/user").status == 204
    assert submitter.get("/quotas/user/ann").json["running_tasks"] is None
    assert operator.send("DELETE", "/quotas/default/user").status == 404


def test_only_operators_delete_quotas(operator: Caller, submitter: Caller) -> None:
    put(operator, "user/ann", {"running_tasks": 7})
    for subject in ("user/ann", "user/eve", "default/user"):
        assert submitter.send("DELETE", f"/quotas/{subject}").status == 403
    assert Quota.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_change_wakes_placement_once_it_is_committed(operator: Caller, wakes: Wakes) -> None:
    assert put(operator, "user/olga", {"weight": 0}).status == 422
    assert wakes.take() == 0
    for limit in (5, None):
        assert put(operator, "user/olga", {"running_tasks": limit}).status == 200
        assert wakes.take() == 1
    put(operator, "user/olga", {"running_tasks": 5})
    assert wakes.take() == 1
    assert operator.send("DELETE", "/quotas/user/olga").status == 204
    assert wakes.take() == 1
