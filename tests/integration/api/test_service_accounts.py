"""Service accounts: users for machines, of one project, which its managers control."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, AuditLine, Membership, Project
from tests.integration.api.conftest import (
    Caller,
    check_described,
    make_caller,
    make_outsider,
)

ACCOUNTS = "/projects/default/lab/service-accounts"
JOB = {"name": "sweep", "image": "busybox", "command": ["true"], "project": "lab"}


@pytest.fixture(name="chief")
def manager_of_lab(tenancy: None) -> Caller:
    """A manager of the project `lab`, which is not the default one."""
    default = Project.objects.get()
    Project.objects.create(domain=default.domain, name="lab")
    return make_caller("chief", Role.MANAGER, project="lab")


def make_account(caller: Caller, name: str = "robot", **body: Any) -> Any:
    """The document of a new service account."""
    answer = caller.put(f"{ACCOUNTS}/{name}", body)
    assert answer.status == 201, answer.json
    return answer.json


def token_of(caller: Caller, name: str = "robot", **body: Any) -> Any:
    """The document of a new token of a service account."""
    answer = caller.post("/tokens", {"name": "ci", "user": name, **body})
    assert answer.status == 201, answer.json
    return answer.json


def test_machine_submits_with_the_token_that_a_manager_created(chief: Caller) -> None:
    made = make_account(chief)
    check_described("ServiceAccount", made)
    assert (made["name"], made["role"]) == ("robot", "submitter")
    token = token_of(chief)
    assert (token["user"], token["projects"]) == ("robot", ["default/lab"])
    robot = Caller(token["token"])
    assert robot.post("/jobs", JOB).status == 201
    assert robot.post("/jobs", {**JOB, "project": "default"}).status == 422
    assert not User.objects.get(username="robot").has_usable_password()
    assert not User.objects.get(username="robot").is_staff
    assert [found["name"] for found in chief.get(ACCOUNTS).json["results"]] == ["robot"]
    assert chief.get(f"{ACCOUNTS}/robot").json == made


def test_role_of_a_service_account_changes(chief: Caller) -> None:
    make_account(chief, role="viewer")
    robot = Caller(token_of(chief)["token"])
    assert robot.post("/jobs", JOB).status == 403
    assert chief.put(f"{ACCOUNTS}/robot", {"role": "submitter"}).status == 200
    assert robot.post("/jobs", JOB).status == 201
    assert chief.put(f"{ACCOUNTS}/robot", {"role": "operator"}).status == 422


def test_deleted_account_loses_its_tokens_and_keeps_its_jobs(chief: Caller) -> None:
    make_account(chief)
    token = token_of(chief)["token"]
    job = Caller(token).post("/jobs", JOB).json["id"]
    assert chief.send("DELETE", f"{ACCOUNTS}/robot").status == 204
    assert Caller(token).get("/jobs").status == 401
    assert chief.get(f"/jobs/{job}").status == 200
    assert chief.get(ACCOUNTS).json["results"] == []
    assert chief.get(f"{ACCOUNTS}/robot").status == 404
    assert chief.send("DELETE", f"{ACCOUNTS}/robot").status == 404
    assert chief.post("/tokens", {"name": "x", "user": "robot"}).status == 404
    assert not ApiToken.objects.filter(user__username="robot").exists()
    assert not Membership.objects.filter(user__username="robot").exists()
    make_account(chief)
    assert Caller(token).get("/jobs").status == 401
    lines = AuditLine.objects.filter(subject="service account robot of default/lab")
    assert [line.action for line in lines.order_by("pk")] == [
        "create.service_account",
        "delete.service_account",
        "create.service_account",
    ]


def test_name_of_another_user_is_a_conflict_and_changes_nothing(chief: Caller) -> None:
    other = make_caller("user-1", Role.SUBMITTER, project="default")
    make_account(chief)
    neighbour = make_caller("user-2", Role.MANAGER, project="default")
    for name in ("user-1", "robot"):
        path = f"/projects/default/default/service-accounts/{name}"
        assert neighbour.put(path, {"role": "manager"}).status == 409
        assert neighbour.get(path).status == 404
        assert neighbour.send("DELETE", path).status == 404
    assert other.get("/whoami").json["roles"] == [
        {"domain": "default", "project": "default", "role": "submitter"}
    ]
    assert Membership.objects.get(user__username="robot").role == "submitter"


@pytest.mark.parametrize(("role", "status"), [(Role.VIEWER, 403), (Role.SUBMITTER, 404)])
def test_other_members_control_no_service_accounts(chief: Caller, role: Role, status: int) -> None:
    make_account(chief)
    member = make_caller("user-1", role, project="lab")
    assert member.get(ACCOUNTS).status == 403
    assert member.put(f"{ACCOUNTS}/robot", {"role": "manager"}).status == 403
    assert member.send("DELETE", f"{ACCOUNTS}/robot").status == 403
    assert member.post("/tokens", {"name": "x", "user": "robot"}).status == status


def test_outsiders_see_no_service_accounts(chief: Caller) -> None:
    make_account(chief)
    outsider = make_outsider("user-1")
    assert outsider.get(ACCOUNTS).status == 404
    assert outsider.put(f"{ACCOUNTS}/new", {}).status == 404
    refused = outsider.post("/tokens", {"name": "x", "user": "robot"})
    assert (refused.status, refused.json["detail"]) == (
        404,
        "there is no user robot, or only operators may create tokens for the user",
    )
    assert not User.objects.filter(username="new").exists()


def test_managers_create_tokens_for_their_service_accounts_only(chief: Caller) -> None:
    make_caller("user-1", Role.SUBMITTER, project="lab")
    make_account(chief)
    neighbour = make_caller("user-2", Role.MANAGER, project="default")
    assert chief.post("/tokens", {"name": "x", "user": "user-1"}).status == 404
    assert neighbour.post("/tokens", {"name": "x", "user": "robot"}).status == 404
    own = create_api_token(user=chief.user, name="b", role=Role.SUBMITTER, now=clock.now())
    assert Caller(own).post("/tokens", {"name": "x", "user": "robot"}).status == 404


@pytest.mark.parametrize("body", [{"role": "operator"}, {"expires_in_days": 366}])
def test_token_of_a_service_account_has_the_limits_of_its_giver(
    chief: Caller, body: dict[str, Any]
) -> None:
    make_account(chief)
    assert chief.post("/tokens", {"name": "x", "user": "robot", **body}).status == 403


def test_every_token_of_a_service_account_is_limited_to_its_project(
    chief: Caller, operator: Caller
) -> None:
    make_account(chief)
    for caller in (chief, operator):
        body = {"name": "x", "user": "robot", "projects": ["default/default"]}
        assert caller.post("/tokens", body).status in (403, 404)
    made = token_of(operator, name="robot", expires_in_days=1000)
    assert made["projects"] == ["default/lab"]
    robot = Caller(made["token"])
    assert robot.post("/tokens", {"name": "own"}).status == 201
    assert robot.get("/tokens").json["results"][0]["projects"] == ["default/lab"]


def test_managers_list_and_revoke_tokens_of_service_accounts(chief: Caller) -> None:
    make_account(chief)
    made = token_of(chief)
    listed = chief.get("/tokens?project=default/lab").json["results"]
    assert [token["id"] for token in listed] == [made["id"]]
    assert chief.send("DELETE", f"/tokens/{made['id']}").status == 204
    assert Caller(made["token"]).get("/jobs").status == 401
