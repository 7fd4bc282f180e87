"""Provide the base views of the API: bearer tokens, roles and problem documents."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from django.contrib.auth.models import User
from django.utils.functional import cached_property
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, Throttled
from rest_framework.metadata import SimpleMetadata
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from controlplane import clock
from controlplane.api import charges, openapi
from controlplane.api.pages import KeysetPagination, ListQuery
from controlplane.api.refused_tokens import note_refusal
from controlplane.api.requests import PARSERS, Parameters
from controlplane.commands.tenancy.tokens import digest_of, note_use
from controlplane.domain.roles import Access, Role
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import Credential, find_credential
from controlplane.queries.tenancy.foreign_jobs import hide_foreign_jobs

MAX_TOKEN_LENGTH = 512
READ_METHODS = ("GET", "HEAD", "OPTIONS")


class BearerAuthentication(BaseAuthentication):
    """Authentication by `Authorization: Bearer <token>`."""

    def authenticate(self, request: Request) -> tuple[Any, Credential] | None:
        """Return the user and credential of the presented token; None without one."""
        scheme, _, token = get_authorization_header(request).partition(b" ")
        if not scheme:
            return None
        try:
            if scheme.lower() != b"bearer":
                raise AuthenticationFailed("use the header Authorization: Bearer TOKEN")
            return self.check(token.strip())
        except AuthenticationFailed as fault:
            note_refusal(request, fault)
            charges.admit_address(request)
            raise

    def check(self, token: bytes) -> tuple[Any, Credential]:
        """Return the user and credential of a token. Raise AuthenticationFailed."""
        try:
            text = token.decode("ascii")
        except UnicodeDecodeError:
            text = ""
        credential, now = None, clock.now()
        if 0 < len(text) <= MAX_TOKEN_LENGTH:
            credential = find_credential(digest_of(text), now=now)
        if credential is None:
            raise AuthenticationFailed("the token is unknown or has expired: use another one")
        note_use(credential, now=now)
        return credential.user, credential

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge for a caller without a token."""
        return 'Bearer realm="Cellrun"'


class MaySubmit(BasePermission):
    """Allow reads with any token; changes need the role submitter."""

    message = "the request needs a token with the role submitter"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the request only reads, or the caller is a submitter."""
        return request.method in READ_METHODS or has_role(request, Role.SUBMITTER)


class MayOperate(BasePermission):
    """Allow operators only."""

    message = "the request needs a token with the role operator"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the caller is an operator; if not, name the role of the token."""
        self.message = MayOperate.message + _present_role(request)
        return has_role(request, Role.OPERATOR)


class MayAudit(BasePermission):
    """Allow reads to auditors and operators; changes need the role operator."""

    message = "the request needs a token with the role operator; auditors may read"

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether an auditor or operator reads, or the caller is an operator."""
        if request.method not in READ_METHODS:
            return has_role(request, Role.OPERATOR)
        credential = request.auth
        return isinstance(credential, Credential) and load_access(credential).may_audit


class ReadOrOperate(MayOperate):
    """Allow reads with any token; changes need the role operator."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Return whether the request only reads, or the caller is an operator."""
        return request.method in READ_METHODS or super().has_permission(request, view)


class IgnoreAccept(DefaultContentNegotiation):
    """Select the first renderer and ignore Accept: documents are JSON, logs are text."""

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        """Return the first renderer."""
        first = next(iter(renderers))
        return first, first.media_type


class Metadata(SimpleMetadata):
    """The response to OPTIONS; only the OpenAPI description has the fields of bodies."""

    def determine_actions(self, request: Request, view: APIView) -> dict[str, Any]:
        """Return no fields."""
        return {}


class FastJSONRenderer(JSONRenderer):
    """Render by orjson, and by REST framework what orjson does not support.

    See docs/decisions/0081.
    """

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the JSON text of `data`; empty for None."""
        try:
            text = orjson.dumps(data, _default, _JSON_OPTIONS) if data is not None else b""
        except TypeError:
            return super().render(data, accepted_media_type, renderer_context)
        # Some versions of JavaScript take these for ends of lines.
        return text.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


_default = JSONEncoder().default
_JSON_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS


class ApiView(GenericViewSet[Any]):
    """Base of the views: parse the request, call one command or query, respond."""

    authentication_classes: Sequence[Any] = (BearerAuthentication,)
    permission_classes: Sequence[Any] = (IsAuthenticated, MaySubmit)
    parser_classes: Sequence[Any] = PARSERS
    renderer_classes = (FastJSONRenderer,)
    pagination_class = KeysetPagination
    content_negotiation_class = IgnoreAccept
    metadata_class = Metadata
    document: Any = None
    """The pydantic model of the responses of views without a serializer."""

    def perform_authentication(self, request: Request) -> None:
        """Authenticate the caller and charge the request, also one that is refused later."""
        super().perform_authentication(request)
        if request.authenticators:
            charges.admit(request)

    def handle_exception(self, exc: Exception) -> Response:
        """Return the response for an error; charge a request that is not signed as it must be."""
        if not self.request.authenticators:
            try:
                charges.admit_unsigned(self.request)
            except Throttled as refusal:
                exc = refusal
        return super().handle_exception(exc)

    @cached_property
    def query(self) -> Parameters:
        """Return the query parameters. Raise BadQuery for one that the action does not describe."""
        known = openapi.operation_of(self).query
        return Parameters(self.request, *(parameter.name for parameter in known))

    @cached_property
    def access(self) -> Access:
        """Return the roles of the caller. Raise NotAuthenticated."""
        return load_access(credential_of(self.request))

    @property
    def actor(self) -> str:
        """Return the name of the caller."""
        return self.request.user.get_username()

    def begin_page(self) -> KeysetPagination:
        """Return the requested part of a list. Raise BadQuery."""
        paginator: Any = self.paginator
        page: KeysetPagination = paginator.begin(self.query)
        charges.charge_rows(self.request, page.limit)
        return page

    def hiding(self, find: ListQuery) -> ListQuery:
        """Return `find` without the jobs of other projects that its documents name."""
        return lambda **page: hide_foreign_jobs(find(**page), self.access.readable)

    def answer_page(self, find: ListQuery, key: str, by: str = "before") -> Response:
        """Return a page of a list; its cursor is the field `key`, the argument `by` of `find`.

        The parameter `fields`, if the action has it, selects the fields of the results.
        """
        fields = self.read_fields()
        found = self.begin_page().take(find, key, by)
        return self.get_paginated_response(select_fields(self.represent(found), fields))

    def read_fields(self) -> list[str] | None:
        """Return the fields that the request selects; None: all. Raise InvalidSpec."""
        operation = openapi.operation_of(self)
        if all(known.name != openapi.FIELDS for known in operation.query):
            return None
        document = operation.answer or self.document
        return self.query.selection(openapi.FIELDS, tuple(document.model_fields))

    def answer(self, document: Any, status: int = 200) -> Response:
        """Return the response with one document."""
        return Response(self.represent(document), status=status)

    def represent(self, document: Any) -> Any:
        """Return one or several documents, serialized if the view has a serializer."""
        if self.serializer_class is None:
            return document
        return self.get_serializer(document, many=isinstance(document, list)).data


class SignedView(ApiView):
    """Base of the views for cells, which sign their requests instead of using a token."""

    authentication_classes = ()
    permission_classes = ()

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the methods of the view; no signature is needed."""
        charges.admit_unsigned(request)
        return super().options(request, *args, **kwargs)


def select_fields(results: Any, fields: Sequence[str] | None) -> Any:
    """Return documents with these fields only; None: with all."""
    if fields is None:
        return results
    return [{name: result[name] for name in fields} for result in results]


def has_role(request: Request, role: Role) -> bool:
    """Return whether the caller, with the presented token, has `role`."""
    return isinstance(request.auth, Credential) and request.auth.role.includes(role)


def _present_role(request: Request) -> str:
    if not isinstance(request.auth, Credential):
        return ""
    credential = request.auth
    kind = "session" if credential.token is None else "token"
    return f"; this {kind} of {credential.user.get_username()} has the role {credential.role}"


def credential_of(request: Request) -> Credential:
    """Return the presented token. Raise NotAuthenticated."""
    if not isinstance(request.auth, Credential):
        raise NotAuthenticated
    return request.auth


def caller_of(request: Request) -> User:
    """Return the user of the presented token. Raise NotAuthenticated."""
    if not isinstance(request.user, User):
        raise NotAuthenticated
    return request.user
