"""Operators create projects, and change members and groups in the admin (docs/projects.md)."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.commands.tenancy.groups import set_group_users
from controlplane.commands.tenancy.members import INSTALLATION, MemberScope, put_member
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, Domain, Membership, Project
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import session_credential
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db

MEMBERSHIPS, PROJECTS, GROUPS = (
    "/admin/controlplane/membership/",
    "/admin/controlplane/project/",
    "/admin/auth/group/",
)


@pytest.fixture
def project(installation: None) -> Project:
    return Project.objects.select_related("domain").get()


@pytest.fixture
def user(installation: None) -> User:
    return User.objects.create_user("user-1")


def add_member(browser: Client, **fields: Any) -> Any:
    blank = {"user": "", "group": "", "project": "", "domain": "", "role": "viewer"}
    return browser.post(f"{MEMBERSHIPS}add/", {**blank, **fields})


def give(member: User | Group, scope: MemberScope, role: Role | None) -> Membership:
    put_member(scope=scope, member=member, role=role, actor="test", now=NOW)
    return Membership.objects.latest("pk")


def errors(answer: Any) -> str:
    """The errors of a form that was sent."""
    assert answer.status_code == 200
    form = answer.context["adminform"].form
    return " ".join(str(text) for texts in form.errors.values() for text in texts)


def lines(action: str) -> list[tuple[Any, ...]]:
    """Subject, before and after of the audit lines of an action."""
    found = AuditLine.objects.filter(action=action).order_by("pk")
    assert {line.actor for line in found} <= {"olga", "test"}
    return [(line.subject, line.before, line.after) for line in found if line.actor == "olga"]


class TestMembers:
    def test_project_page_leads_to_a_form_that_adds_a_member(
        self, operator: Client, project: Project, user: User
    ) -> None:
        own = address_of(Project, project)
        form = f"{MEMBERSHIPS}add/?project={project.pk}"
        assert f'href="{form}"' in page(operator, own)
        shown = operator.get(form).context["adminform"].form
        assert shown["project"].value() == str(project.pk)
        answer = add_member(operator, user=user.pk, project=project.pk, role="submitter")
        assert (answer.status_code, answer["Location"]) == (302, own)
        assert "user user-1 submitter project" in words(page(operator, own))
        access = load_access(session_credential(user))
        assert access.projects == {project.pk: Role.SUBMITTER}
        expected = f"role of user user-1 on project {project}"
        assert lines("grant.role") == [(expected, None, {"role": "submitter"})]

    def test_group_becomes_member_of_a_domain(self, operator: Client, project: Project) -> None:
        group = Group.objects.get(name="night-shift")
        answer = add_member(operator, group=group.pk, domain=project.domain_id, role="manager")
        own = address_of(Domain, project.domain)
        assert answer["Location"] == own
        # Its users are named, since they have the role.
        assert "group night-shift ann manager domain" in words(page(operator, own))

    def test_role_is_changed_and_nothing_else(
        self, operator: Client, project: Project, user: User
    ) -> None:
        found = give(user, MemberScope(project=project), Role.VIEWER)
        other = User.objects.create_user("user-2")
        address = f"{MEMBERSHIPS}{found.pk}/change/"
        answer = operator.post(address, {"role": "manager", "user": other.pk, "project": ""})
        assert answer["Location"] == address_of(Project, project)
        found.refresh_from_db()
        assert (found.user, found.project, found.role) == (user, project, "manager")
        [(_, before, after)] = lines("grant.role")
        assert (before, after) == ({"role": "viewer"}, {"role": "manager"})
        shown = words(page(operator, "/admin/controlplane/auditline/"))
        assert "role: viewer → manager" in shown

    def test_page_of_a_user_shows_the_roles_of_the_user_and_its_groups(
        self, operator: Client, project: Project
    ) -> None:
        ann = User.objects.get(username="ann")
        give(ann, MemberScope(domain=project.domain), Role.SUBMITTER)
        shown = words(page(operator, f"/admin/auth/user/{ann.pk}/change/"))
        assert f"viewer project {project} by the group night-shift" in shown
        assert f"submitter domain {project.domain}" in shown

    def test_page_of_a_project_leads_to_its_jobs(self, operator: Client, project: Project) -> None:
        other = Project.objects.create(domain=project.domain, name="other")
        for row, number in ((project, "1 job"), (other, "0 jobs")):
            jobs = f"/admin/controlplane/job/?project__id__exact={row.pk}"
            assert f'href="{jobs}"' in page(operator, address_of(Project, row))
            assert number in words(page(operator, jobs))

    def test_member_is_removed_after_a_confirmation(
        self, operator: Client, project: Project, user: User
    ) -> None:
        found = give(user, MemberScope(project=project), Role.VIEWER)
        address = f"{MEMBERSHIPS}{found.pk}/delete/"
        assert f'href="{address}"' in page(operator, address_of(Project, project))
        assert "Are you sure" in page(operator, address)
        assert Membership.objects.filter(pk=found.pk).exists()
        answer = operator.post(address, {"post": "yes"})
        assert answer["Location"] == address_of(Project, project)
        assert load_access(session_credential(user)).projects == {}
        expected = f"role of user user-1 on project {project}"
        assert lines("remove.role") == [(expected, {"role": "viewer"}, None)]

    def test_auditor_is_added_and_cannot_get_another_role(
        self, operator: Client, user: User
    ) -> None:
        answer = add_member(operator, user=user.pk, role="auditor")
        assert answer["Location"] == f"{MEMBERSHIPS}?role__exact=auditor"
        found = Membership.objects.get(user=user)
        assert (found.role, found.project, found.domain) == ("auditor", None, None)
        assert "the installation" in words(page(operator, answer["Location"]))
        refused = operator.post(f"{MEMBERSHIPS}{found.pk}/change/", {"role": "manager"})
        assert refused.status_code == 403
        found.refresh_from_db()
        assert found.role == "auditor"

    def test_role_auditor_is_not_offered_for_a_member_of_a_project(
        self, operator: Client, project: Project, user: User
    ) -> None:
        found = give(user, MemberScope(project=project), Role.VIEWER)
        answer = operator.post(f"{MEMBERSHIPS}{found.pk}/change/", {"role": "auditor"})
        assert "auditor is not one of the available choices" in errors(answer)

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({}, "Choose a user or a group, and not both."),
            ({"user": "user", "group": "group", "project": "project"}, "Choose a user or a group"),
            (
                {"user": "user"},
                "Choose a project or a domain, and not both; for an auditor neither.",
            ),
            ({"user": "user", "project": "project", "domain": "domain"}, "Choose a project or"),
            ({"user": "user", "project": "project", "role": "auditor"}, "for an auditor neither"),
            ({"user": "user", "project": "project", "role": "owner"}, "not one of the available"),
            ({"user": "99999", "project": "project"}, "Select a valid choice"),
            ({"group": "group", "project": "project"}, "change that role"),
        ],
    )
    def test_fault_is_named_and_nothing_is_changed(
        self,
        operator: Client,
        project: Project,
        user: User,
        fields: dict[str, str],
        expected: str,
    ) -> None:
        keys = {
            "user": user.pk,
            "group": Group.objects.get().pk,
            "project": project.pk,
            "domain": project.domain_id,
        }
        before = list(Membership.objects.values())
        answer = add_member(operator, **{name: keys.get(it, it) for name, it in fields.items()})
        found = errors(answer)
        assert expected in found
        assert "Constraint" not in found
        assert list(Membership.objects.values()) == before

    def test_onlooker_and_auditor_see_members_without_links_to_change_them(
        self, onlooker: Client, project: Project, user: User
    ) -> None:
        give(user, INSTALLATION, None)
        auditor = Client()
        auditor.force_login(user)
        for browser in (onlooker, auditor):
            for row in (project, project.domain):
                shown = page(browser, address_of(type(row), row))
                assert "night-shift" in shown or row == project.domain
                assert "membership/" not in shown.partition('id="content-main"')[2]
            assert "night-shift" in page(browser, MEMBERSHIPS)
            assert "ann" in page(browser, f"{GROUPS}{Group.objects.get().pk}/change/")

    def test_staff_with_permissions_to_change_are_no_operators(
        self, onlooker: Client, project: Project, user: User
    ) -> None:
        User.objects.get(username="otto").user_permissions.set(Permission.objects.all())
        assert add_member(onlooker, user=user.pk, project=project.pk).status_code == 403
        group = Group.objects.get()
        assert onlooker.post(f"{GROUPS}{group.pk}/change/", {"users": []}).status_code == 403
        assert onlooker.post(f"{GROUPS}{group.pk}/delete/", {"post": "yes"}).status_code == 403
        assert group.user_set.exists()
        assert onlooker.post(f"{PROJECTS}add/", {"name": "x"}).status_code == 403

    def test_post_without_a_csrf_token_is_refused(
        self, operator: Client, project: Project, user: User
    ) -> None:
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="olga"))
        assert add_member(strict, user=user.pk, project=project.pk).status_code == 403
        assert not user.memberships.exists()

    def test_deletion_of_a_user_records_the_roles_that_end(
        self, operator: Client, project: Project, user: User
    ) -> None:
        give(user, MemberScope(project=project), Role.MANAGER)
        operator.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"})
        assert not User.objects.filter(pk=user.pk).exists()
        expected = f"role of user user-1 on project {project}"
        assert lines("remove.role") == [(expected, {"role": "manager"}, None)]


class TestProjects:
    def create(self, browser: Client, **fields: Any) -> Any:
        return browser.post(f"{PROJECTS}add/", {"domain": "", "new_domain": "", **fields})

    def test_first_project_creates_its_domain(self, operator: Client, installation: None) -> None:
        answer = self.create(operator, new_domain="research", name="vision")
        made = Project.objects.get(domain__name="research", name="vision")
        assert answer["Location"] == address_of(Project, made)
        assert lines("create.domain") == [("domain research", None, None)]
        assert lines("create.project") == [("project research/vision", None, None)]
        domain = address_of(Domain, made.domain)
        assert "research/vision active" in words(page(operator, domain))
        form = f"{PROJECTS}add/?domain={made.domain_id}"
        assert f'href="{form}"' in page(operator, domain)
        self.create(operator, domain=made.domain_id, name="speech")
        assert "research/speech active" in words(page(operator, domain))
        assert "research 2 0" in words(page(operator, address_of(Domain)))

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"new_domain": "research", "name": ""}, "This field is required."),
            ({"name": "vision"}, "Choose a domain, or enter the name of a new one."),
            ({"domain": "1", "new_domain": "research", "name": "x"}, "Choose a domain, or enter"),
            (
                {"domain": "1", "name": "default"},
                "this Domain and Name already exists.",
            ),
            ({"new_domain": "default", "name": "default"}, "this Domain and Name already exists."),
            ({"new_domain": "Re search", "name": "vision"}, "Use lower-case letters"),
            ({"new_domain": "research", "name": "a/b"}, "Use lower-case letters"),
        ],
    )
    def test_fault_is_named_and_nothing_is_created(
        self, operator: Client, project: Project, fields: dict[str, str], expected: str
    ) -> None:
        if "domain" in fields:
            fields = {**fields, "domain": str(project.domain_id)}
        answer = self.create(operator, **fields)
        assert expected in errors(answer)
        assert (Project.objects.count(), Domain.objects.count()) == (1, 1)

    def test_domain_is_counted_without_a_product_of_its_projects_and_members(
        self, operator: Client, project: Project, user: User
    ) -> None:
        """With joins, 10,000 projects and 100 members would be a million rows."""
        Project.objects.create(domain=project.domain, name="other")
        give(user, MemberScope(domain=project.domain), Role.VIEWER)
        give(Group.objects.get(), MemberScope(domain=project.domain), Role.VIEWER)
        with CaptureQueriesContext(connection) as queries:
            assert "default 2 2" in words(page(operator, address_of(Domain)))
        counting = [query["sql"] for query in queries if '"project_count"' in query["sql"]]
        assert counting
        assert not any("JOIN" in sql for sql in counting)


class TestGroups:
    def test_group_is_created_with_users(self, operator: Client, user: User) -> None:
        operator.post(f"{GROUPS}add/", {"name": "late-shift", "users": [user.pk]})
        assert list(Group.objects.get(name="late-shift").user_set.all()) == [user]
        assert lines("create.group") == [("group late-shift", None, None)]
        expected = ("user user-1", {"groups": []}, {"groups": ["late-shift"]})
        assert lines("change.user") == [expected]
        assert "late-shift 1 0" in words(page(operator, GROUPS))

    def test_users_get_and_lose_the_roles_of_the_group(
        self, operator: Client, project: Project, user: User
    ) -> None:
        group, ann = Group.objects.get(), User.objects.get(username="ann")
        address = f"{GROUPS}{group.pk}/change/"
        assert "viewer" in words(page(operator, address))
        answer = operator.post(address, {"users": [user.pk], "name": "renamed"})
        assert answer.status_code == 302
        group.refresh_from_db()
        assert group.name == "night-shift"
        assert load_access(session_credential(user)).projects == {project.pk: Role.VIEWER}
        assert load_access(session_credential(ann)).projects == {}
        assert [subject for subject, _, _ in lines("change.user")] == ["user ann", "user user-1"]

    def test_deletion_removes_the_roles_of_the_group_and_keeps_its_users(
        self, operator: Client, project: Project
    ) -> None:
        group = Group.objects.get()
        give(group, INSTALLATION, None)
        address = f"{GROUPS}{group.pk}/delete/"
        assert "Are you sure" in page(operator, address)
        operator.post(address, {"post": "yes"})
        assert not Group.objects.exists()
        assert not Membership.objects.exists()
        assert User.objects.filter(username="ann").exists()
        assert [subject for subject, _, _ in lines("remove.role")] == [
            f"role of group night-shift on project {project}",
            "role of group night-shift on the installation",
        ]
        assert lines("change.user") == [("user ann", {"groups": ["night-shift"]}, {"groups": []})]
        assert lines("delete.group") == [("group night-shift", None, None)]

    def test_name_of_another_group_is_refused(self, operator: Client, installation: None) -> None:
        answer = operator.post(f"{GROUPS}add/", {"name": "night-shift"})
        assert "Group with this Name already exists." in errors(answer)

    def test_unchanged_users_leave_no_audit_line(self, operator: Client, user: User) -> None:
        group = Group.objects.get()
        ids = list(group.user_set.values_list("pk", flat=True))
        operator.post(f"{GROUPS}{group.pk}/change/", {"users": ids})
        assert lines("change.user") == []
        set_group_users(group_id=group.pk, user_ids=[*ids, user.pk], actor="olga", now=NOW)
        assert [subject for subject, _, _ in lines("change.user")] == ["user user-1"]
