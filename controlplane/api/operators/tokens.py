"""Endpoints of users and of API tokens, and of the caller's own identity."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, MayAudit, credential_of
from controlplane.api.openapi import Operation, parameter
from controlplane.api.operators.requests import TokenRequest, UserRequest
from controlplane.api.operators.serializers import (
    GrantedTokenSerializer,
    TokenSerializer,
    UserSerializer,
    WhoamiSerializer,
)
from controlplane.api.requests import check_named, read_part
from controlplane.api.walls import check_named_project
from controlplane.commands.tenancy.accounts import put_user
from controlplane.commands.tenancy.tokens import TokenRights, grant_token, revoke_token
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Permission, Role
from controlplane.queries.tenancy import accounts
from controlplane.queries.tenancy.projects import list_roles


class ApiTokens(ApiView):
    """API tokens: those of the caller, of the projects of managers, for operators all."""

    serializer_class = TokenSerializer
    lookup_url_kwarg = "token_id"
    lookup_value_converter = "id"

    @Operation(
        page=True,
        parameters=[
            parameter("user", "Only tokens of this user; operators can name any user."),
            parameter(
                "project",
                "Tokens of all users that are limited to this project, as domain/project, and to"
                " no project that the caller does not manage (managers of the project).",
            ),
        ],
        problems=(403, 404),
    )
    def list(self, request: Request) -> Response:
        """List tokens without their values, newest first: own ones; operators, auditors: all.

        Of a token that is limited to projects, its user reads only those limited to some of these.
        """
        find = partial(accounts.list_tokens, self._filter(), readable=self.access.readable)
        return self.answer_page(find, "pk")

    @Operation(
        id="create_token",
        body=TokenRequest,
        answer=GrantedTokenSerializer,
        codes=(201,),
        problems=(404, 409),
    )
    def create(self, request: Request) -> Response:
        """Create a token; its value is in this response only.

        Its role is at most that of the token that requests it. It is limited to `projects` if the
        body names some, which the caller must be able to read. Operators may create tokens for
        other users, and longer lives; managers for service accounts of their project, which are
        limited to it.
        """
        wanted = read_part(request, TokenRequest)
        credential = credential_of(request)
        user = credential.user if wanted.user is None else self._receiver(wanted.user)
        token_id, clear = grant_token(
            by=credential,
            user=user,
            name=wanted.name,
            rights=TokenRights(
                Role(wanted.role), wanted.expires_in_days, self._bound_to(wanted.projects)
            ),
            now=clock.now(),
        )
        made: Any = self.represent(accounts.get_token(token_id, readable=self.access.readable))
        return Response({**made, "token": clear}, status=201)

    @Operation(id="revoke_token")
    def destroy(self, request: Request, token_id: int) -> Response:
        """Revoke a token; the next request with it is refused."""
        revoke_token(token_id=token_id, by=credential_of(request), now=clock.now())
        return Response(status=204)

    def _receiver(self, name: str) -> User:
        """Return the user `name`, whose token the caller requests. Raise NotFound.

        For a caller who can neither read users nor manages the service account, a user who exists
        does not differ from one who does not.
        """
        if self.access.may_audit:
            return accounts.find_user(name)
        with suppress(NotFound):
            user = accounts.find_user(name)
            is_own = user.pk == self.access.user_id
            if is_own or accounts.find_home(user) in (self.access.managed or ()):
                return user
        raise NotFound(f"there is no user {name}, or only operators may create tokens for the user")

    def _filter(self) -> accounts.TokenFilter:
        """Return which tokens to list. Raise NotFound or PermissionDenied."""
        name, project = self.query.text("user"), self.query.text("project")
        user_id, within = self.access.user_id, self.access.bound_to
        if project is not None:
            action = Permission.READ if self.access.may_audit else Permission.MANAGE
            place = check_named_project(self.access, project, action)
            return accounts.TokenFilter(
                user_id=None if name is None else accounts.get_user(name).pk,
                project_id=place.project_id,
                within=None if self.access.may_audit else self.access.managed,
            )
        if name == self.actor:
            return accounts.TokenFilter(user_id=user_id, within=within)
        if self.access.may_audit:
            return accounts.TokenFilter(None if name is None else accounts.get_user(name).pk)
        if name is not None:
            raise NotFound(f"there is no user {name}")
        return accounts.TokenFilter(user_id=user_id, within=within)

    def _bound_to(self, names: Sequence[str] | None) -> frozenset[int] | None:
        """Return the ids of projects. Raise NotFound for one that the caller may not read."""
        if names is None:
            return None
        return frozenset(check_named_project(self.access, name).project_id for name in names)


class Users(ApiView):
    """Users of the API."""

    permission_classes = (IsAuthenticated, MayAudit)
    serializer_class = UserSerializer
    lookup_field = "name"
    lookup_value_converter = "user_name"

    @Operation(page=True, problems=(403,))
    def list(self, request: Request) -> Response:
        """List users by name (operators)."""
        return self.answer_page(accounts.list_users, "username", "after")

    @Operation(problems=(403,))
    def retrieve(self, request: Request, name: str) -> Response:
        """Show a user (operators)."""
        return self.answer(accounts.get_user(name))

    @Operation(body=UserRequest, codes=(200, 201), problems=(409,))
    def update(self, request: Request, name: str) -> Response:
        """Create a user without a password, or activate or deactivate a user (operators).

        The tokens and logins of an inactive user are refused.
        """
        wanted = read_part(request, UserRequest)
        check_named("name", wanted.name, name)
        is_new = put_user(name=name, is_active=wanted.active, actor=self.actor, now=clock.now())
        return self.answer(accounts.get_user(name), status=201 if is_new else 200)


class Identity(ApiView):
    """The identity of the caller."""

    serializer_class = WhoamiSerializer

    def get_whoami(self, request: Request) -> Response:
        """Show the user, the token and the roles of the caller."""
        credential = credential_of(request)
        if credential.token is not None:
            accounts.name_projects([credential.token], readable=self.access.readable)
        return self.answer(
            {
                "user": self.actor,
                "role": credential.role,
                "installation": self.access.on_installation,
                "roles": list_roles(self.access),
                "token": credential.token,
            }
        )
