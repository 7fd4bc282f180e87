"""The admin page of a project shows its members, and archives it through the command."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from controlplane.commands.tenancy.members import MemberScope, put_member
from controlplane.commands.tenancy.service_accounts import put_service_account
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, Project
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


@pytest.fixture(name="lab")
def project_with_members(installation: None) -> Project:
    """A project with a user, a group of the domain and a service account."""
    default = Project.objects.select_related("domain").earliest("pk")
    lab = Project.objects.create(domain=default.domain, name="lab")
    user = User.objects.create_user("user-1")
    group = Group.objects.create(name="team-1")
    for scope, member, role in (
        (MemberScope(project=lab), user, Role.MANAGER),
        (MemberScope(domain=lab.domain), group, Role.VIEWER),
    ):
        put_member(scope=scope, member=member, role=role, actor="test", now=NOW)
    put_service_account(project=lab, name="robot-1", role=Role.SUBMITTER, actor="test", now=NOW)
    return lab


def test_page_shows_members_of_project_and_domain_and_service_accounts(
    operator: Client, lab: Project
) -> None:
    assert str(lab) in words(page(operator, address_of(Project)))
    shown = words(page(operator, address_of(Project, lab)))
    assert "user user-1 manager project" in shown
    assert "group team-1 no users viewer domain" in shown
    assert "user robot-1 submitter project" in shown
    assert "robot-1 active" in shown
    assert "Archive" in shown


def test_project_is_archived_after_a_confirmation(operator: Client, lab: Project) -> None:
    chosen = {"action": "archive", "_selected_action": [str(lab.pk)]}
    confirmation = operator.post(address_of(Project), chosen)
    assert "accepts no new jobs" in confirmation.content.decode()
    lab.refresh_from_db()
    assert lab.archived_at is None
    operator.post(address_of(Project), {**chosen, "confirmed": "yes"})
    lab.refresh_from_db()
    assert lab.archived_at is not None
    line = AuditLine.objects.get(action="change.project")
    assert (line.actor, line.subject) == ("olga", "project " + str(lab))
    assert "Unarchive" in words(page(operator, address_of(Project, lab)))
    back = {**chosen, "action": "unarchive", "confirmed": "yes"}
    operator.post(address_of(Project), back)
    lab.refresh_from_db()
    assert lab.archived_at is None


def test_onlooker_sees_projects_and_archives_none(onlooker: Client, lab: Project) -> None:
    assert "user-1" in page(onlooker, address_of(Project, lab))
    chosen = {"action": "archive", "_selected_action": [str(lab.pk)], "confirmed": "yes"}
    onlooker.post(address_of(Project), chosen)
    lab.refresh_from_db()
    assert lab.archived_at is None
