"""The project of a request for secrets or cache entries that names none."""

from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.tenancy.members import INSTALLATION, put_member
from controlplane.domain.roles import Role
from controlplane.models import Domain, Project
from tests.harness.members import admit
from tests.integration.api.conftest import Caller, make_caller, make_outsider

LISTS = pytest.mark.parametrize("path", ["/secrets", "/cache"])


@pytest.fixture(autouse=True)
def research(db: None) -> Domain:
    """The domain `research` with the projects `a`, `b` and `c`."""
    domain = Domain.objects.create(name="research")
    for name in ("a", "b", "c"):
        Project.objects.create(domain=domain, name=name)
    return domain


def member(name: str, **roles: Role) -> Caller:
    caller = make_outsider(name)
    for project, role in roles.items():
        admit(caller.user, role, project, domain="research")
    return caller


def put(caller: Caller, query: str = "") -> Any:
    answer = caller.put(f"/secrets/token{query}", {"value": "v"})
    return f"{answer.json['domain']}/{answer.json['project']}" if answer.status == 201 else answer


def test_the_only_project_is_selected() -> None:
    caller = member("user-1", a=Role.MANAGER)
    assert put(caller) == "research/a"
    assert [row["name"] for row in caller.get("/secrets").json["results"]] == ["token"]
    assert caller.get("/secrets/token").json["project"] == "a"
    assert caller.get("/cache").json["results"] == []
    missing = caller.get("/cache/k@1")
    assert (missing.status, "research/a" in missing.json["detail"]) == (404, True)
    assert caller.send("DELETE", "/secrets/token").status == 204


def test_the_role_on_the_only_project_counts() -> None:
    assert member("user-1", a=Role.VIEWER).get("/secrets").status == 403


@LISTS
def test_several_projects_are_named(path: str) -> None:
    answer = member("user-1", a=Role.MANAGER, b=Role.MANAGER).get(path)
    assert answer.status == 422
    text = "is missing; select with domain and project one of research/a, research/b"
    assert answer.faults == {"project": text}
    assert member("user-2", a=Role.MANAGER).get(path).status == 200


@LISTS
def test_a_caller_without_a_role_is_not_given_names(path: str) -> None:
    answer = make_outsider("user-1").get(path)
    assert answer.status == 422
    assert answer.faults == {"project": "is missing, and you have no role on a project"}


def test_many_projects_are_not_all_named(research: Domain) -> None:
    caller = make_outsider("user-1")
    admit(caller.user, Role.SUBMITTER, domain="research")
    names = [f"n{number:02}" for number in range(20)]
    Project.objects.bulk_create(Project(domain=research, name=name) for name in names)
    text = caller.get("/secrets").faults["project"]
    assert text.endswith("research/n16 and others")


def test_a_limited_token_selects_the_project_to_which_it_is_limited() -> None:
    caller = member("user-1", a=Role.MANAGER, b=Role.MANAGER)
    made = caller.post("/tokens", {"name": "ci", "role": "manager", "projects": ["research/b"]})
    assert put(Caller(made.json["token"])) == "research/b"


def test_a_role_on_the_default_project_selects_it(operator: Caller) -> None:
    manager = make_caller("user-1", Role.MANAGER, project="default")
    admit(manager.user, Role.MANAGER, "a", domain="research")
    assert put(manager) == "default/default"
    auditor = make_outsider("user-2")
    put_member(scope=INSTALLATION, member=auditor.user, role=None, actor="test", now=clock.now())
    admit(auditor.user, Role.SUBMITTER, "a", domain="research")
    assert auditor.get("/secrets").status == 403
    assert operator.get("/secrets").json["results"][0]["project"] == "default"


def test_a_named_project_is_not_replaced() -> None:
    caller = member("user-1", a=Role.MANAGER)
    for query in ("?project=default", "?domain=default", "?project=a", "?domain=research"):
        assert put(caller, query).status == 404
    assert put(caller, "?domain=research&project=a") == "research/a"
