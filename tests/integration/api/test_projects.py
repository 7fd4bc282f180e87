"""Projects and their members: rights, refusals, and what a caller may know."""

import base64
from typing import Any

import pytest
from django.contrib.auth.models import Group

from controlplane import clock
from controlplane.commands.tenancy.members import INSTALLATION, MemberScope, put_member
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, Domain, Membership, Project
from tests.integration.api.conftest import Caller, check_described, make_outsider

JOB = {"name": "sweep", "image": "busybox", "command": ["true"]}
VISION = "/projects/research/vision"


@pytest.fixture
def vision(operator: Caller) -> Project:
    """The project `research/vision`, in a domain of its own."""
    assert operator.put(VISION).status == 201
    return Project.objects.get(domain__name="research")


@pytest.fixture(name="manager")
def vision_manager(vision: Project) -> Caller:
    """A manager of `research/vision`."""
    return member_of(MemberScope(project=vision), "manager-1", Role.MANAGER)


def member_of(scope: MemberScope, name: str, role: Role | None) -> Caller:
    """A new user whose only role is on `scope`, with a token of the role manager."""
    caller = make_outsider(name)
    put_member(scope=scope, member=caller.user, role=role, actor="test", now=clock.now())
    return caller


def names_of(caller: Caller) -> list[str]:
    """The names of the projects that the caller lists."""
    answer = caller.get("/projects")
    assert answer.status == 200
    return [project["name"] for project in answer.json["results"]]


def lines() -> list[tuple[str, str, str]]:
    """Actor, action and subject of the audit lines, oldest first."""
    found = AuditLine.objects.exclude(actor="system").order_by("pk")
    return list(found.values_list("actor", "action", "subject"))


# ------------------------------------------------------------------------------------ projects


def test_operator_creates_a_project_with_its_domain(operator: Caller) -> None:
    made = operator.put(VISION, {})
    assert made.status == 201
    check_described("Project", made.json)
    assert made.json == {
        "name": "research/vision",
        "domain": "research",
        "project": "vision",
        "role": "operator",
        "archived": False,
        "archived_at": None,
        "stored_bytes": 0,
        "stored_bytes_limit": None,
        "hold": None,
    }
    assert operator.put(VISION, {}).status == 200
    assert operator.get(VISION).json == made.json
    assert lines() == [
        ("olga", "create.domain", "domain research"),
        ("olga", "create.project", "project research/vision"),
    ]


def test_manager_of_a_domain_creates_projects_in_it_only(vision: Project, operator: Caller) -> None:
    manager = member_of(MemberScope(domain=vision.domain), "manager-1", Role.MANAGER)
    made = manager.put("/projects/research/speech")
    assert (made.status, made.json["role"]) == (201, "manager")
    assert manager.put("/projects/default/speech").status == 404
    assert manager.put("/projects/nowhere/speech").status == 404
    assert not Domain.objects.filter(name="nowhere").exists()
    assert set(Project.objects.values_list("name", flat=True)) == {"default", "vision", "speech"}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER])
def test_other_members_of_a_domain_create_no_projects(vision: Project, role: Role) -> None:
    member = member_of(MemberScope(domain=vision.domain), "member-1", role)
    assert member.put("/projects/research/speech").status == 403
    assert Project.objects.filter(name="speech").count() == 0


def test_manager_of_a_project_creates_none(manager: Caller) -> None:
    assert manager.put("/projects/research/speech").status == 404
    assert manager.put("/projects/default/speech").status == 404


def test_operator_with_a_lesser_token_creates_no_project(operator: Caller) -> None:
    token = create_api_token(user=operator.user, name="b", role=Role.MANAGER, now=clock.now())
    assert Caller(token).put(VISION).status == 404
    assert not Domain.objects.filter(name="research").exists()


@pytest.mark.parametrize("name", ["Vision", ".x", "a" * 64, "a%20b", "a%2Fb"])
def test_name_of_a_project_follows_the_rule_of_job_specs(operator: Caller, name: str) -> None:
    assert operator.put(f"/projects/research/{name}").status == 404
    assert operator.put(f"/projects/{name}/vision").status == 404
    assert not Domain.objects.exclude(name="default").exists()


def test_list_has_the_readable_projects_by_name_with_the_role_on_each(
    vision: Project, manager: Caller, operator: Caller
) -> None:
    for name in ("research/audio", "sales/leads"):
        operator.put(f"/projects/{name}")
    everything = ["default/default", "research/audio", "research/vision", "sales/leads"]
    assert names_of(operator) == everything
    assert names_of(manager) == ["research/vision"]
    auditor = member_of(INSTALLATION, "auditor-1", None)
    assert names_of(auditor) == everything
    viewer = member_of(MemberScope(domain=vision.domain), "viewer-1", Role.VIEWER)
    assert names_of(viewer) == ["research/audio", "research/vision"]
    assert manager.get("/projects").json["results"][0]["role"] == "manager"
    assert names_of(make_outsider("outsider-1")) == []


def test_pages_of_projects_are_whole(operator: Caller) -> None:
    expected = [f"{domain}/{project}" for domain in ("a", "a-b", "b") for project in ("x", "y")]
    for name in reversed(expected):
        operator.put(f"/projects/{name}")
    found, url = [], "/projects?limit=2"
    while url:
        page = operator.get(url).json
        found += [project["name"] for project in page["results"]]
        url = page["next"]
    assert sorted(found) == sorted([*expected, "default/default"])
    assert len(found) == len(set(found))


def test_foreign_project_does_not_exist(vision: Project, submitter: Caller) -> None:
    unknown = submitter.get("/projects/research/nothing")
    assert (unknown.status, unknown.json["detail"]) == (404, "there is no project research/nothing")
    shown = submitter.get(VISION)
    assert (shown.status, shown.json["detail"]) == (404, "there is no project research/vision")
    for name in ("vision", "nothing"):
        changed = submitter.put(f"/projects/research/{name}", {"archived": True})
        text = f"there is no project research/{name}; managers of its domain and operators"
        assert (changed.status, changed.json["detail"]) == (404, f"{text} may create it")
    assert submitter.get(f"{VISION}/members").status == 404
    assert submitter.put(f"{VISION}/members/users/ann", {"role": "viewer"}).status == 404
    assert submitter.send("DELETE", f"{VISION}/members/users/ann").status == 404
    assert submitter.get("/domains/research/members").status == 404


# ------------------------------------------------------------------------------------- archive


def test_archived_project_accepts_no_jobs_and_secrets_and_stays_readable(
    manager: Caller,
) -> None:
    job = manager.post("/jobs", {**JOB, "domain": "research", "project": "vision"})
    assert job.status == 201
    secret = "/secrets/key?domain=research&project=vision"
    value = {"value_base64": base64.b64encode(b"x").decode()}
    assert manager.put(secret, value).status == 201
    archived = manager.put(VISION, {"archived": True})
    assert (archived.status, archived.json["archived"]) == (200, True)
    refused = manager.post("/jobs", {**JOB, "domain": "research", "project": "vision"})
    assert refused.status == 422
    assert "archived" in refused.faults["project"]
    assert manager.put(secret, value).status == 409
    assert manager.get(f"/jobs/{job.json['id']}").status == 200
    assert manager.get(secret).json["version"] == 1
    assert manager.put(VISION, {}).json["archived"] is True
    assert manager.put(VISION, {"archived": False}).json["archived_at"] is None
    assert manager.put(secret, value).status == 200
    changes = AuditLine.objects.filter(action="change.project", subject="project research/vision")
    assert list(changes.order_by("pk").values_list("before", "after")) == [
        ({"archived": False}, {"archived": True}),
        ({"archived": True}, {"archived": False}),
    ]


@pytest.mark.parametrize("role", [Role.VIEWER, Role.SUBMITTER])
def test_member_without_the_role_manager_changes_nothing(vision: Project, role: Role) -> None:
    member = member_of(MemberScope(project=vision), "member-1", role)
    assert member.get(VISION).json["role"] == role
    assert member.put(VISION, {"archived": True}).status == 403
    assert member.get(f"{VISION}/members").status == 403
    assert member.put(f"{VISION}/members/users/member-1", {"role": "manager"}).status == 403
    assert member.send("DELETE", f"{VISION}/members/users/member-1").status == 403
    assert Membership.objects.get(user=member.user).role == role
    assert Project.objects.get(pk=vision.pk).archived_at is None


def test_manager_with_a_lesser_token_changes_no_members(manager: Caller) -> None:
    token = create_api_token(user=manager.user, name="b", role=Role.SUBMITTER, now=clock.now())
    answer = Caller(token).put(f"{VISION}/members/users/manager-1", {"role": "viewer"})
    assert answer.status == 403


# ------------------------------------------------------------------------------------- members


def test_manager_grants_changes_and_removes_a_role(manager: Caller, vision: Project) -> None:
    user = make_outsider("user-1")
    path = f"{VISION}/members/users/user-1"
    assert user.get(VISION).status == 404
    granted = manager.put(path, {"role": "viewer"})
    assert granted.status == 201
    check_described("Member", granted.json)
    assert (granted.json["kind"], granted.json["name"]) == ("user", "user-1")
    assert user.get(VISION).json["role"] == "viewer"
    assert manager.put(path, {"role": "submitter"}).status == 200
    assert user.post("/jobs", {**JOB, "domain": "research", "project": "vision"}).status == 201
    members = manager.get(f"{VISION}/members").json["results"]
    assert [(found["name"], found["role"]) for found in members] == [
        ("manager-1", "manager"),
        ("user-1", "submitter"),
    ]
    assert manager.send("DELETE", path).status == 204
    assert user.get(VISION).status == 404
    assert manager.send("DELETE", path).status == 404
    found = AuditLine.objects.filter(actor="manager-1", subject__contains="user user-1 on project")
    assert list(found.order_by("pk").values_list("action", "before", "after")) == [
        ("grant.role", None, {"role": "viewer"}),
        ("grant.role", {"role": "viewer"}, {"role": "submitter"}),
        ("remove.role", {"role": "submitter"}, None),
    ]


def test_operators_create_a_group_with_its_first_role(operator: Caller, manager: Caller) -> None:
    path = f"{VISION}/members/groups/night-shift"
    assert manager.put(path, {"role": "viewer"}).status == 404
    assert not Group.objects.filter(name="night-shift").exists()
    assert operator.put(path, {"role": "viewer"}).status == 201
    assert Group.objects.filter(name="night-shift").exists()
    assert AuditLine.objects.filter(action="create.group", subject="group night-shift").exists()
    assert manager.put(path, {"role": "submitter"}).status == 200


def test_group_with_a_role_gives_it_to_its_users(manager: Caller) -> None:
    group = Group.objects.create(name="Vision team/Zürich")
    user = make_outsider("user-1")
    user.user.groups.add(group)
    path = f"{VISION}/members/groups/Vision%20team/Z%C3%BCrich"
    assert manager.put(path, {"role": "viewer"}).json["kind"] == "group"
    assert user.get(VISION).status == 200
    assert manager.send("DELETE", path).status == 204
    assert user.get(VISION).status == 404


def test_last_manager_can_leave_and_an_operator_appoints_another(
    manager: Caller, operator: Caller
) -> None:
    assert manager.send("DELETE", f"{VISION}/members/users/manager-1").status == 204
    assert manager.get(VISION).status == 404
    path = f"{VISION}/members/users/manager-1"
    assert operator.put(path, {"role": "manager"}).status == 201
    assert manager.get(f"{VISION}/members").status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [({"role": "operator"}, "role"), ({"role": "auditor"}, "role"), ({}, "role")],
)
def test_role_of_a_member_is_one_of_three(
    manager: Caller, body: dict[str, Any], field: str
) -> None:
    answer = manager.put(f"{VISION}/members/users/manager-1", body)
    assert answer.status == 422
    assert field in answer.faults


@pytest.mark.parametrize("member", ["users/unknown", "groups/unknown", "robots/manager-1"])
def test_unknown_member_is_not_found(manager: Caller, member: str) -> None:
    answer = manager.put(f"{VISION}/members/{member}", {"role": "viewer"})
    assert answer.status == 404


def test_manager_of_a_domain_manages_its_members_and_those_of_its_projects(
    vision: Project,
) -> None:
    manager = member_of(MemberScope(domain=vision.domain), "manager-1", Role.MANAGER)
    user = make_outsider("user-1")
    path = "/domains/research/members/users/user-1"
    assert manager.put(path, {"role": "viewer"}).status == 201
    assert user.get(VISION).json["role"] == "viewer"
    assert user.get("/domains/research/members").status == 403
    assert user.put(path, {"role": "manager"}).status == 403
    assert [row["name"] for row in manager.get("/domains/research/members").json["results"]] == [
        "manager-1",
        "user-1",
    ]
    assert manager.send("DELETE", path).status == 204
    assert manager.put(f"{VISION}/members/users/user-1", {"role": "viewer"}).status == 201
    assert manager.get(f"{VISION}/members").status == 200


def test_manager_of_a_project_does_not_manage_its_domain(manager: Caller) -> None:
    path = "/domains/research/members"
    assert manager.get(path).status == 404
    assert manager.put(f"{path}/users/manager-1", {"role": "manager"}).status == 404


def test_operator_manages_every_domain_and_project(vision: Project, operator: Caller) -> None:
    make_outsider("user-1")
    for path in (VISION, "/domains/research"):
        assert operator.put(f"{path}/members/users/user-1", {"role": "manager"}).status == 201
    assert operator.get("/domains/unknown/members").status == 404
    assert operator.put("/domains/unknown/members/users/user-1", {"role": "viewer"}).status == 404


# ------------------------------------------------------------------------------------ auditors


def test_auditor_reads_members_and_changes_nothing(vision: Project, operator: Caller) -> None:
    auditor = make_outsider("auditor-1")
    assert auditor.get("/auditors").status == 403
    assert operator.put("/auditors/users/auditor-1").status == 201
    assert operator.put("/auditors/users/auditor-1", {}).status == 200
    for path in (f"{VISION}/members", "/domains/research/members", "/auditors"):
        assert auditor.get(path).status == 200
    assert auditor.get("/auditors").json["results"][0]["role"] == "auditor"
    for path in (VISION, "/domains/research"):
        refused = auditor.put(f"{path}/members/users/auditor-1", {"role": "manager"})
        assert refused.status == 403
    assert auditor.put(VISION, {"archived": True}).status == 403
    assert auditor.put("/auditors/users/auditor-1").status == 403
    assert auditor.send("DELETE", "/auditors/users/auditor-1").status == 403
    assert operator.send("DELETE", "/auditors/users/auditor-1").status == 204
    assert auditor.get(VISION).status == 404


def test_manager_appoints_no_auditors(manager: Caller) -> None:
    assert manager.put("/auditors/users/manager-1").status == 403
    assert manager.get("/auditors").status == 403
