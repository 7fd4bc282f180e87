"""Endpoints of projects and of their members: users and groups with a role."""

from functools import partial

from django.contrib.auth.models import Group, User
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import READ_METHODS, ApiView, MayAudit
from controlplane.api.openapi import Operation
from controlplane.api.operators.requests import (
    MemberRequest,
    ProjectRequest,
    ServiceAccountRequest,
)
from controlplane.api.operators.serializers import (
    MemberSerializer,
    ProjectSerializer,
    ServiceAccountSerializer,
)
from controlplane.api.requests import read_part
from controlplane.api.schemas import EmptyRequest, HoldReleaseRequest, HoldRequest
from controlplane.api.walls import check_domain, check_new_project, check_project
from controlplane.commands.jobs.holds import hold_project, release_project
from controlplane.commands.tenancy.groups import create_group
from controlplane.commands.tenancy.members import (
    INSTALLATION,
    MemberScope,
    put_member,
    remove_member,
)
from controlplane.commands.tenancy.projects import archive_project, create_project
from controlplane.commands.tenancy.service_accounts import (
    delete_service_account,
    put_service_account,
)
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Permission, Place, Role
from controlplane.queries.tenancy import accounts, projects


class Projects(ApiView):
    """Projects that the caller may read."""

    serializer_class = ProjectSerializer

    @Operation(page=True)
    def list(self, request: Request) -> Response:
        """List the projects that the caller may read, with the caller's role, by name."""
        return self.answer_page(partial(projects.list_projects, self.access), "name", "after")

    def retrieve(self, request: Request, domain: str, project: str) -> Response:
        """Show a project with the caller's role."""
        return self.answer(projects.get_project(self.access, domain, project))

    @Operation(body=ProjectRequest, codes=(200, 201))
    def update(self, request: Request, domain: str, project: str) -> Response:
        """Create a project (managers of its domain), or archive or unarchive it (its managers).

        An archived project accepts no new jobs and secrets; its members can still read. Operators
        create a missing domain with its first project.
        """
        wanted = read_part(request, ProjectRequest)
        is_new = False
        try:
            place = check_project(self.access, domain, project, Permission.MANAGE)
        except NotFound:
            check_new_project(self.access, domain, project)
            is_new = create_project(
                domain=domain, project=project, actor=self.actor, now=clock.now()
            )
            del self.access  # the roles on the new project follow from those on its domain
            place = check_project(self.access, domain, project, Permission.MANAGE)
        if wanted.archived is not None:
            archive_project(
                project_id=place.project_id,
                is_archived=wanted.archived,
                actor=self.actor,
                now=clock.now(),
            )
        found = projects.get_project(self.access, domain, project)
        return self.answer(found, status=201 if is_new else 200)

    @Operation(body=HoldRequest, problems=(409,))
    def hold_project(self, request: Request, domain: str, project: str) -> Response:
        """Place no waiting task of a project, also of later jobs, until its release (managers).

        Running tasks continue, and the time does not count for scheduling timeouts. A hold by an
        operator can only be changed and released by operators.
        """
        place, role = self._managed(domain, project)
        reason = read_part(request, HoldRequest).reason
        hold_project(
            project_id=place.project_id,
            reason=reason,
            role=role,
            actor=self.actor,
            now=clock.now(),
        )
        return self.answer(projects.get_project(self.access, domain, project))

    @Operation(body=HoldReleaseRequest, problems=(409,))
    def release_project(self, request: Request, domain: str, project: str) -> Response:
        """Release a project from its hold (managers); its jobs keep their own. 409: not held."""
        place, role = self._managed(domain, project)
        reason = read_part(request, HoldReleaseRequest).reason
        release_project(
            project_id=place.project_id,
            reason=reason,
            role=role,
            actor=self.actor,
            now=clock.now(),
        )
        return self.answer(projects.get_project(self.access, domain, project))

    def _managed(self, domain: str, project: str) -> tuple[Place, Role]:
        """Return the place of a project that the caller manages, and the caller's role."""
        place = check_project(self.access, domain, project, Permission.MANAGE)
        return place, self.access.role_on(place) or Role.VIEWER


class Members(ApiView):
    """Users and groups with a role."""

    serializer_class = MemberSerializer

    @Operation(page=True, problems=(403,))
    def list(self, request: Request, **where: str) -> Response:
        """List the users and groups with a role, oldest first (managers and auditors)."""
        scope = self._scope()
        return self.answer_page(partial(projects.list_members, *_ids(scope)), "pk", "after")

    @Operation(body=MemberRequest, codes=(200, 201))
    def update(self, request: Request, members: str, name: str, **where: str) -> Response:
        """Give a user or group a role in place of a present one (managers).

        Operators create a group with its first role.
        """
        scope = self._scope()
        return self._put(scope, members, name, Role(read_part(request, MemberRequest).role))

    def destroy(self, request: Request, members: str, name: str, **where: str) -> Response:
        """Remove the role of a user or group (managers)."""
        scope = self._scope()
        member = _find_member(members, name)
        remove_member(scope=scope, member=member, actor=self.actor, now=clock.now())
        return Response(status=204)

    def _put(self, scope: MemberScope, members: str, name: str, role: Role | None) -> Response:
        if members == projects.GROUPS and self.access.may_operate:
            create_group(name=name, actor=self.actor, now=clock.now())
        member = _find_member(members, name)
        is_new = put_member(
            scope=scope, member=member, role=role, actor=self.actor, now=clock.now()
        )
        found = projects.get_member(*_ids(scope), member)
        return self.answer(found, status=201 if is_new else 200)

    def _scope(self) -> MemberScope:
        """Return what the roles are on. Raise NotFound or PermissionDenied."""
        raise NotImplementedError


def needed_to_read(view: ApiView) -> Permission:
    """Return what the caller must be able to do: auditors may read without being managers."""
    is_audit = view.request.method in READ_METHODS and view.access.may_audit
    return Permission.READ if is_audit else Permission.MANAGE


class ServiceAccounts(ApiView):
    """Users for machines, which have no password. Managers of their project create their tokens."""

    serializer_class = ServiceAccountSerializer

    @Operation(page=True, problems=(403,))
    def list(self, request: Request, domain: str, project: str) -> Response:
        """List the service accounts of a project by name (managers and auditors)."""
        place = check_project(self.access, domain, project, needed_to_read(self))
        found = partial(projects.list_service_accounts, place.project_id)
        return self.answer_page(found, "name", "after")

    @Operation(problems=(403,))
    def retrieve(self, request: Request, domain: str, project: str, name: str) -> Response:
        """Show a service account (managers and auditors)."""
        place = check_project(self.access, domain, project, needed_to_read(self))
        return self.answer(projects.get_service_account(place.project_id, name))

    @Operation(body=ServiceAccountRequest, codes=(200, 201), problems=(409,))
    def update(self, request: Request, domain: str, project: str, name: str) -> Response:
        """Create a service account with a role on its project, or change the role (managers).

        Names of users are unique: that of another user is a conflict.
        """
        place = check_project(self.access, domain, project, Permission.MANAGE)
        is_new = put_service_account(
            project=projects.load_project(place.project_id),
            name=name,
            role=Role(read_part(request, ServiceAccountRequest).role),
            actor=self.actor,
            now=clock.now(),
        )
        found = projects.get_service_account(place.project_id, name)
        return self.answer(found, status=201 if is_new else 200)

    def destroy(self, request: Request, domain: str, project: str, name: str) -> Response:
        """Deactivate a service account and revoke its tokens; its jobs remain (managers)."""
        place = check_project(self.access, domain, project, Permission.MANAGE)
        delete_service_account(
            project=projects.load_project(place.project_id),
            name=name,
            actor=self.actor,
            now=clock.now(),
        )
        return Response(status=204)


class ProjectMembers(Members):
    """Users and groups with a role on a project. Roles on its domain are not listed."""

    def _scope(self) -> MemberScope:
        names = self.kwargs["domain"], self.kwargs["project"]
        place = check_project(self.access, *names, needed_to_read(self))
        return MemberScope(project=projects.load_project(place.project_id))


class DomainMembers(Members):
    """Users and groups with a role on all projects of a domain."""

    def _scope(self) -> MemberScope:
        domain_id = check_domain(self.access, self.kwargs["domain"], needed_to_read(self))
        return MemberScope(domain=projects.load_domain(domain_id))


class Auditors(Members):
    """Users and groups that may read everything and change nothing."""

    permission_classes = (IsAuthenticated, MayAudit)

    @Operation(page=True, problems=(403,))
    def list(self, request: Request, **where: str) -> Response:
        """List the auditors, oldest first (auditors and operators)."""
        return super().list(request, **where)

    @Operation(body=EmptyRequest, codes=(200, 201))
    def update(self, request: Request, members: str, name: str, **where: str) -> Response:
        """Permit a user or group to read everything in the installation (operators)."""
        read_part(request, EmptyRequest)
        return self._put(INSTALLATION, members, name, None)

    def destroy(self, request: Request, members: str, name: str, **where: str) -> Response:
        """Remove the role of an auditor (operators)."""
        return super().destroy(request, members, name, **where)

    def _scope(self) -> MemberScope:
        return INSTALLATION


def _ids(scope: MemberScope) -> tuple[int | None, int | None]:
    """Return the ids of the project and of the domain."""
    project, domain = scope.project, scope.domain
    return None if project is None else project.pk, None if domain is None else domain.pk


def _find_member(members: str, name: str) -> User | Group:
    return accounts.get_user(name) if members == projects.USERS else accounts.get_group(name)
