"""Endpoints of users and of API tokens, and of the caller's own identity."""

from functools import partial
from typing import Any

from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, MayAudit, credential_of, has_role
from controlplane.api.openapi import Operation, parameter
from controlplane.api.operators.requests import TokenRequest, UserRequest
from controlplane.api.operators.serializers import (
    GrantedTokenSerializer,
    TokenSerializer,
    UserSerializer,
    WhoamiSerializer,
)
from controlplane.api.requests import check_named, read_part
from controlplane.commands.tenancy.accounts import put_user
from controlplane.commands.tenancy.tokens import grant_token, revoke_token
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Role
from controlplane.queries.tenancy import accounts


class ApiTokens(ApiView):
    """API tokens: those of the caller, and for operators those of all users."""

    serializer_class = TokenSerializer
    lookup_url_kwarg = "token_id"
    lookup_value_converter = "id"

    @Operation(
        page=True,
        parameters=[parameter("user", "Only tokens of this user; operators can name any user.")],
    )
    def list(self, request: Request) -> Response:
        """List tokens without their values, newest first: own ones, or as an operator all."""
        return self.answer_page(partial(accounts.list_tokens, self._user_id()), "pk")

    @Operation(
        id="create_token",
        body=TokenRequest,
        answer=GrantedTokenSerializer,
        codes=(201,),
        problems=(404, 409),
    )
    def create(self, request: Request) -> Response:
        """Create a token; its value is in this response only.

        Its role is at most that of the token that requests it. Operators may create tokens for
        other users, and longer lives.
        """
        wanted = read_part(request, TokenRequest)
        credential = credential_of(request)
        user = credential.user if wanted.user is None else accounts.find_user(wanted.user)
        token_id, clear = grant_token(
            by=credential,
            user=user,
            name=wanted.name,
            role=Role(wanted.role),
            days=wanted.expires_in_days,
            now=clock.now(),
        )
        made: Any = self.represent(accounts.get_token(token_id))
        return Response({**made, "token": clear}, status=201)

    @Operation(id="revoke_token")
    def destroy(self, request: Request, token_id: int) -> Response:
        """Revoke a token; the next request with it is refused."""
        revoke_token(token_id=token_id, by=credential_of(request), now=clock.now())
        return Response(status=204)

    def _user_id(self) -> int | None:
        """Return whose tokens to list; None: of all users. Raise NotFound."""
        name = self.query.text("user")
        if name == self.actor:
            return credential_of(self.request).user.pk
        if has_role(self.request, Role.OPERATOR):
            return None if name is None else accounts.get_user(name).pk
        if name is not None:
            raise NotFound(f"there is no user {name}")
        return credential_of(self.request).user.pk


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
        """Show the user, role and token of the caller."""
        credential = credential_of(request)
        token = accounts.get_token(credential.token_id or 0)
        return self.answer({"user": self.actor, "role": credential.role, "token": token})
