"""Endpoints of secrets: submitters write and delete them; values are never returned."""

from django.http import HttpResponse
from rest_framework.request import Request

from controlplane import clock
from controlplane.api import openapi
from controlplane.api.base import ApiView, caller_of
from controlplane.api.pages import PAGING, PageRequest
from controlplane.api.requests import Parameters, read_part
from controlplane.api.responses import answer
from controlplane.api.secret_schemas import SecretRequest
from controlplane.commands.tenancy.accounts import DEFAULT_NAME
from controlplane.commands.tenancy.secrets import delete_secret, put_secret
from controlplane.queries.tenancy import secrets
from controlplane.spec import Fault, InvalidSpec, UnreadableDocument

_WHOSE = ("domain", "project")
_WHERE = [
    openapi.parameter("domain", "Of the project; `default` if it is missing."),
    openapi.parameter("project", "Whose secrets; `default` if it is missing."),
]


class Secrets(ApiView):
    """All secrets of a project."""

    @openapi.describe(
        "list_secrets",
        answers={200: openapi.page_of("StoredSecret")},
        parameters=[*_WHERE, *openapi.PAGING],
        problems=(400, 404),
    )
    def get(self, request: Request) -> HttpResponse:
        """List a project's secrets by name, without their values."""
        parameters = Parameters(request, *_WHOSE, *PAGING)
        page = PageRequest(request, parameters)
        found = secrets.list_secrets(_project(parameters), after=page.name, limit=page.limit + 1)
        return page.answer(found, lambda secret: secret["name"])


class SecretDetail(ApiView):
    """One secret."""

    @openapi.describe(
        "get_secret",
        answers={200: openapi.ref("StoredSecret")},
        parameters=_WHERE,
        problems=(400, 404),
    )
    def get(self, request: Request, name: str) -> HttpResponse:
        """Show a secret: its size, its last writer and the time, but not its value."""
        return answer(secrets.get_secret(_project(Parameters(request, *_WHOSE)), name))

    @openapi.describe(
        "put_secret",
        body="SecretRequest",
        answers={200: openapi.ref("StoredSecret"), 201: openapi.ref("StoredSecret")},
        parameters=_WHERE,
        problems=(400, 403, 404, 413, 415, 422),
    )
    def put(self, request: Request, name: str) -> HttpResponse:
        """Write a secret, or replace it; attempts that begin from now on get this value."""
        project_id = _project(Parameters(request, *_WHOSE))
        is_new = put_secret(
            project_id=project_id,
            name=name,
            value=_read_value(request),
            writer=caller_of(request),
            now=clock.now(),
        )
        return answer(secrets.get_secret(project_id, name), status=201 if is_new else 200)

    @openapi.describe(
        "delete_secret",
        answers={204: None},
        parameters=_WHERE,
        problems=(400, 403, 404),
    )
    def delete(self, request: Request, name: str) -> HttpResponse:
        """Delete a secret; tasks that name it and begin later fail for want of it."""
        delete_secret(project_id=_project(Parameters(request, *_WHOSE)), name=name)
        return HttpResponse(status=204)


def _project(parameters: Parameters) -> int:
    return secrets.find_project(
        parameters.text("domain") or DEFAULT_NAME, parameters.text("project") or DEFAULT_NAME
    )


def _read_value(request: Request) -> bytes:
    """The value in the body. What is refused of it is never repeated, as elsewhere names are."""
    known = SecretRequest.model_fields
    try:
        return read_part(request, SecretRequest).content()
    except UnreadableDocument:
        text = "the body cannot be parsed; details are omitted because they could reveal the value"
        raise UnreadableDocument(text) from None
    except InvalidSpec as error:
        faults = [
            fault
            if not fault.field or fault.field in _FIELDS
            else Fault("", f"unknown field; known are {', '.join(known)}")
            for fault in error.faults
        ]
        raise InvalidSpec(faults) from None


_FIELDS = {*SecretRequest.model_fields, "registry.username", "registry.password"}
