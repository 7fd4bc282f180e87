"""What a user can list is exactly what the roles permit, for random memberships.

The oracle restates the rules of docs/projects.md in the words of the page, over plain lists.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane import clock
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Domain, Membership, Project, Quota
from controlplane.spec import parse_job
from tests.integration.api.conftest import Caller, change_setting

DOMAINS = ("physics", "biology")
PROJECTS = tuple(f"{domain}/{name}" for domain in DOMAINS for name in ("a", "b"))
GROUPS = ("staff", "guests")
ROLES = ("viewer", "submitter", "manager")

scopes = st.sampled_from((*PROJECTS, *DOMAINS, "installation"))
members = st.sampled_from(("user", *GROUPS))


@dataclass(frozen=True)
class Situation:
    """Grants of (member, scope, role), the groups of the user, and the circumstances."""

    grants: list[tuple[str, str, str]]
    groups: list[str]
    is_open: bool
    is_operator: bool
    bound_to: list[str] | None


@st.composite
def situations(draw: Any) -> Situation:
    grants = {}
    for member, scope in draw(st.lists(st.tuples(members, scopes), max_size=6)):
        role = "auditor" if scope == "installation" else draw(st.sampled_from(ROLES))
        grants[member, scope] = role
    return Situation(
        [(member, scope, role) for (member, scope), role in grants.items()],
        draw(st.lists(st.sampled_from(GROUPS), unique=True)),
        draw(st.sampled_from((False, False, False, True))),
        draw(st.sampled_from((False, False, False, True))),
        draw(st.none() | st.lists(st.sampled_from(PROJECTS), unique=True)),
    )


def listed_by_the_rules(situation: Situation) -> set[str]:
    """The projects whose work the user may read."""
    found = set()
    for project in PROJECTS:
        domain = project.split("/")[0]
        for member, scope, _ in situation.grants:
            is_of_user = member == "user" or member in situation.groups
            if is_of_user and scope in (project, domain, "installation"):
                found.add(project)
        if situation.is_open or situation.is_operator:
            found.add(project)
    if situation.bound_to is not None:
        found = {project for project in found if project in situation.bound_to}
    return found


@dataclass
class World:
    """One job and one waiting task in each project."""

    projects: dict[str, Project] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)


def make_world() -> World:
    create_default_tenancy()
    owner, _ = create_user(name="owner", password=None, is_operator=False)
    world = World()
    for path in PROJECTS:
        domain, name = path.split("/")
        home, _ = Domain.objects.get_or_create(name=domain)
        world.projects[path] = Project.objects.create(domain=home, name=name)
        body = {"name": "job", "image": "busybox", "domain": domain, "project": name}
        [made] = submit_jobs(specs=[parse_job(body)], bodies=[body], owner=owner, now=clock.now())
        world.jobs[path] = made.job_id
        Quota.objects.create(project=world.projects[path], running_tasks=1)
    for name in GROUPS:
        Group.objects.create(name=name)
    return world


def make_reader(world: World, situation: Situation, number: int) -> Caller:
    user, _ = create_user(name=f"user-{number}", password=None, is_operator=situation.is_operator)
    Membership.objects.all().delete()
    user.groups.set(Group.objects.filter(name__in=situation.groups))
    for member, scope, role in situation.grants:
        grant(world, user, member, scope, role)
    token = create_api_token(user=user, name="t", role=Role.VIEWER, now=clock.now())
    if situation.bound_to is not None:
        ids = [world.projects[path].pk for path in situation.bound_to]
        user.api_tokens.update(bound_to=ids)  # type: ignore[attr-defined]
    return Caller(token, user)


def grant(world: World, user: User, member: str, scope: str, role: str) -> None:
    Membership.objects.create(
        user=user if member == "user" else None,
        group=None if member == "user" else Group.objects.get(name=member),
        project=world.projects.get(scope),
        domain=Domain.objects.get(name=scope) if scope in DOMAINS else None,
        role=role,
        created_at=clock.now(),
    )


@pytest.mark.django_db
def test_a_user_lists_and_reads_exactly_what_the_rules_permit(settings_of_test: Any) -> None:
    world, numbers = make_world(), iter(range(1_000_000))

    @settings(
        max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(situations())
    def check(situation: Situation) -> None:
        change_setting(settings_of_test, open_reading=situation.is_open)
        reader = make_reader(world, situation, next(numbers))
        expected = {world.jobs[path] for path in listed_by_the_rules(situation)}
        assert {item["id"] for item in reader.get("/jobs").json["results"]} == expected
        assert {item["job"] for item in reader.get("/tasks").json["results"]} == expected
        readable = listed_by_the_rules(situation)
        assert names(reader, "/projects") == readable
        assert names(reader, "/quotas?kind=project") == readable
        for path, job_id in world.jobs.items():
            domain, project = path.split("/")
            query = f"domain={domain}&project={project}"
            status = 200 if path in readable else 404
            for url in (
                f"/jobs/{job_id}",
                f"/jobs/{job_id}/tasks",
                f"/jobs/{job_id}/history",
                f"/jobs/{job_id}/artifacts",
                f"/jobs?project={path}",
                f"/projects/{path}",
                f"/quotas/project/{path}",
                f"/cache?{query}",
            ):
                assert (url, reader.get(url).status) == (url, status)
            # Names of secrets need the role submitter, which the token does not have.
            assert reader.get(f"/secrets?{query}").status == (403 if status == 200 else 404)

    check()


def names(reader: Caller, url: str) -> set[str]:
    """The projects of the world that a list names."""
    return {item["name"] for item in reader.get(url).json["results"]} & set(PROJECTS)


@pytest.fixture
def settings_of_test(settings: Any) -> Any:
    """The settings, which hypothesis's decorator of that name would hide."""
    return settings
