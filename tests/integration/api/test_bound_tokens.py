"""Tokens limited to projects, the tokens that managers see, and the roles in `whoami`."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.tenancy.members import INSTALLATION, MemberScope, put_member
from controlplane.domain.roles import Role
from controlplane.models import ApiToken, AuditLine, Domain, Membership, Project
from tests.integration.api.conftest import Caller, check_described, make_outsider

A, B = "research/a", "research/b"


@pytest.fixture(autouse=True)
def research(db: None) -> Domain:
    """The domain `research` with the projects `a` and `b`."""
    domain = Domain.objects.create(name="research")
    for name in ("a", "b"):
        Project.objects.create(domain=domain, name=name)
    return domain


def member(name: str, **roles: Role) -> Caller:
    """A new user with roles on projects of `research`, with a token of the role manager."""
    caller = make_outsider(name)
    for project, role in roles.items():
        scope = MemberScope(project=Project.objects.get(name=project))
        put_member(scope=scope, member=caller.user, role=role, actor="test", now=clock.now())
    return caller


def grant(caller: Caller, *projects: str, **body: Any) -> Any:
    """The document of a new token that is limited to projects."""
    answer = caller.post("/tokens", {"name": "ci", "projects": [*projects], **body})
    assert answer.status == 201, answer.json
    return answer.json


def job_in(name: str) -> dict[str, Any]:
    """A job in a project."""
    domain, _, project = name.partition("/")
    body = {"name": "sweep", "image": "busybox", "command": ["true"]}
    return {**body, "domain": domain, "project": project}


def names_of(caller: Caller, query: str = "") -> set[str]:
    """The names of the tokens that the caller lists."""
    answer = caller.get(f"/tokens{query}")
    assert answer.status == 200, answer.json
    return {token["name"] for token in answer.json["results"]}


def test_token_works_in_its_projects_only() -> None:
    user = member("user-1", a=Role.SUBMITTER, b=Role.SUBMITTER)
    foreign = user.post("/jobs", job_in(B)).json["id"]
    made = grant(user, A)
    check_described("GrantedToken", made)
    assert made["projects"] == [A]
    bound = Caller(made["token"])
    assert bound.post("/jobs", job_in(A)).status == 201
    assert bound.post("/jobs", job_in(B)).status == 422
    assert bound.get(f"/jobs/{foreign}").status == 404
    assert [project["name"] for project in bound.get("/projects").json["results"]] == [A]
    assert user.get("/tokens").json["results"][0]["projects"] == [A]
    assert user.get("/tokens").json["results"][1]["projects"] is None
    [line] = AuditLine.objects.filter(action="create.token", after__projects=[A])
    assert line.actor == "user-1"


def test_operators_token_with_a_limit_is_no_operator(operator: Caller) -> None:
    bound = Caller(grant(operator, A, role="manager")["token"])
    assert bound.get("/users").status == 403
    assert bound.put("/projects/sales/leads").status == 404
    assert bound.get("/projects/research/b").status == 404
    assert bound.put("/projects/research/a", {"archived": True}).status == 200
    refused = operator.post("/tokens", {"name": "x", "projects": [A], "role": "operator"})
    assert refused.status == 403


def test_limit_names_projects_that_the_caller_reads() -> None:
    user = member("user-1", a=Role.VIEWER)
    for name in (B, "research/unknown"):
        answer = user.post("/tokens", {"name": "ci", "projects": [A, name]})
        assert (answer.status, answer.json["detail"]) == (404, f"there is no project {name}")
    assert not ApiToken.objects.filter(name="ci").exists()


@pytest.mark.parametrize("projects", [[], ["a"], ["research/a/b"], ["Research/a"], [A] * 101])
def test_malformed_limit_names_the_field(projects: list[str]) -> None:
    answer = member("user-1", a=Role.VIEWER).post("/tokens", {"name": "ci", "projects": projects})
    assert answer.status == 422
    assert next(iter(answer.faults)).startswith("projects")


def test_limited_token_creates_only_tokens_within_its_limit() -> None:
    user = member("user-1", a=Role.SUBMITTER, b=Role.SUBMITTER)
    bound = Caller(grant(user, A, B)["token"])
    assert bound.post("/tokens", {"name": "wide"}).status == 403
    narrow = Caller(grant(bound, A, name="narrow")["token"])
    assert narrow.post("/tokens", {"name": "wide", "projects": [A, B]}).status == 404
    assert narrow.post("/tokens", {"name": "other", "projects": [A]}).status == 201
    assert set(ApiToken.objects.values_list("name", flat=True)) == {
        "test",
        "ci",
        "narrow",
        "other",
    }


def test_limited_token_lists_and_revokes_only_tokens_within_its_limit() -> None:
    user = member("user-1", a=Role.SUBMITTER, b=Role.SUBMITTER)
    bound = Caller(grant(user, A)["token"])
    other = grant(user, A, B, name="other")
    unlimited = user.get("/whoami").json["token"]["id"]
    assert names_of(bound) == {"ci"}
    for token_id in (other["id"], unlimited):
        assert bound.send("DELETE", f"/tokens/{token_id}").status == 404
    own = bound.get("/whoami").json["token"]["id"]
    assert bound.send("DELETE", f"/tokens/{own}").status == 204


def test_projects_of_a_token_have_no_names_after_the_roles_on_them_end() -> None:
    user = member("user-1", a=Role.SUBMITTER, b=Role.SUBMITTER)
    one, both = grant(user, B, name="one"), grant(user, A, B, name="both")
    assert (both["projects"], both["hidden_projects"]) == ([A, B], 0)
    Membership.objects.filter(project__name="b").delete()
    found = user.get("/tokens")
    assert {
        token["name"]: (token["projects"], token["hidden_projects"])
        for token in found.json["results"]
    } == {"test": (None, 0), "one": ([], 1), "both": ([A], 1)}
    whoami = [Caller(token["token"]).get("/whoami") for token in (one, both)]
    assert [answer.json["token"]["projects"] for answer in whoami] == [[], [A]]
    for answer in (found, *whoami):
        assert B.encode() not in answer.content


def test_manager_lists_and_revokes_tokens_limited_to_managed_projects(operator: Caller) -> None:
    manager = member("manager-1", a=Role.MANAGER)
    user = member("user-1", a=Role.SUBMITTER, b=Role.SUBMITTER)
    inside = grant(user, A, name="inside")
    outside = grant(user, A, B, name="outside")
    unlimited = user.get("/whoami").json["token"]["id"]
    assert names_of(manager, f"?project={A}") == {"inside"}
    assert names_of(manager) == {"test"}
    assert names_of(operator, f"?project={A}") == {"inside", "outside"}
    assert names_of(operator, f"?project={B}") == {"outside"}
    for token_id in (outside["id"], unlimited):
        assert manager.send("DELETE", f"/tokens/{token_id}").status == 404
    assert manager.send("DELETE", f"/tokens/{inside['id']}").status == 204
    assert Caller(inside["token"]).get("/projects").status == 401


def test_other_members_do_not_list_the_tokens_of_a_project() -> None:
    user = member("user-1", a=Role.SUBMITTER)
    other = member("user-2", a=Role.SUBMITTER)
    made = grant(other, A)
    assert user.get(f"/tokens?project={A}").status == 403
    assert user.get(f"/tokens?project={B}").status == 404
    assert user.send("DELETE", f"/tokens/{made['id']}").status == 404


def test_auditor_reads_all_tokens_and_revokes_none() -> None:
    made = grant(member("user-1", a=Role.SUBMITTER), A)
    auditor = make_outsider("auditor-1")
    put_member(scope=INSTALLATION, member=auditor.user, role=None, actor="test", now=clock.now())
    assert names_of(auditor) == {"test", "ci"}
    assert names_of(auditor, f"?project={A}") == {"ci"}
    assert auditor.send("DELETE", f"/tokens/{made['id']}").status == 404


# -------------------------------------------------------------------------------------- whoami


def test_whoami_shows_roles_on_domains_and_projects(research: Domain) -> None:
    user = member("user-1", a=Role.MANAGER, b=Role.VIEWER)
    scope = MemberScope(domain=research)
    put_member(scope=scope, member=user.user, role=Role.SUBMITTER, actor="test", now=clock.now())
    found = user.get("/whoami").json
    check_described("Whoami", found)
    assert found["installation"] is None
    assert found["roles"] == [
        {"domain": "research", "project": None, "role": "submitter"},
        {"domain": "research", "project": "a", "role": "manager"},
    ]
    assert found["token"]["projects"] is None


def test_whoami_of_a_limited_token_shows_the_roles_in_its_limit(research: Domain) -> None:
    user = member("user-1", a=Role.MANAGER, b=Role.VIEWER)
    found = Caller(grant(user, A, role="submitter")["token"]).get("/whoami").json
    assert found["roles"] == [{"domain": "research", "project": "a", "role": "submitter"}]
    assert found["token"]["projects"] == [A]


def test_whoami_shows_the_role_on_the_installation(operator: Caller) -> None:
    assert operator.get("/whoami").json["installation"] == "operator"
    bound = Caller(grant(operator, A, role="manager")["token"])
    assert bound.get("/whoami").json["installation"] is None
    assert bound.get("/whoami").json["roles"][0]["role"] == "manager"
    auditor = make_outsider("auditor-1")
    put_member(scope=INSTALLATION, member=auditor.user, role=None, actor="test", now=clock.now())
    assert auditor.get("/whoami").json["installation"] == "auditor"


def test_whoami_reads_the_token_once() -> None:
    user = member("user-1", a=Role.VIEWER)
    user.get("/whoami")
    with CaptureQueriesContext(connection) as queries:
        assert user.get("/whoami").json["token"]["name"] == "test"
    reads = [
        query["sql"]
        for query in queries
        if query["sql"].startswith("SELECT") and "controlplane_apitoken" in query["sql"]
    ]
    assert len(reads) == 1
