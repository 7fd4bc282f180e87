"""Endpoints of secrets: managers write and delete them; values are never returned."""

from functools import partial

from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import clock
from controlplane.api.base import ApiView, caller_of
from controlplane.api.openapi import ONLY_PROJECT, Operation, parameter
from controlplane.api.operators.requests import RegistryLogin, SecretRequest
from controlplane.api.operators.serializers import StoredSecretSerializer
from controlplane.api.requests import read_part
from controlplane.api.walls import check_project, select_project
from controlplane.commands.tenancy.secrets import delete_secret, put_secret
from controlplane.domain.roles import Permission
from controlplane.queries.tenancy import secrets
from controlplane.spec import Fault, InvalidSpec, UnreadableDocument

_WHERE = [
    parameter("domain", "Domain of the project; default `default`."),
    parameter("project", f"Project of the secrets; default `default`. {ONLY_PROJECT}"),
]


class Secrets(ApiView):
    """Secrets of a project."""

    serializer_class = StoredSecretSerializer
    lookup_field = "name"
    lookup_value_converter = "name"

    @Operation(page=True, parameters=_WHERE, problems=(403, 404, 422))
    def list(self, request: Request) -> Response:
        """List a project's secrets by name, without their values (submitters)."""
        found = partial(secrets.list_secrets, self._project(Permission.SUBMIT))
        return self.answer_page(found, "name", "after")

    @Operation(parameters=_WHERE, problems=(403, 422))
    def retrieve(self, request: Request, name: str) -> Response:
        """Show a secret with size, last writer and time of writing, not its value (submitters)."""
        return self.answer(secrets.get_secret(self._project(Permission.SUBMIT), name))

    @Operation(body=SecretRequest, codes=(200, 201), parameters=_WHERE)
    def update(self, request: Request, name: str) -> Response:
        """Create or replace a secret (managers); attempts that start later get the new value."""
        project_id = self._project(Permission.MANAGE)
        is_new = put_secret(
            project_id=project_id,
            name=name,
            value=_read_value(request),
            writer=caller_of(request),
            now=clock.now(),
        )
        found = secrets.get_secret(project_id, name)
        return self.answer(found, status=201 if is_new else 200)

    @Operation(parameters=_WHERE, problems=(422,))
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a secret (managers); later attempts of tasks that name it fail."""
        delete_secret(project_id=self._project(Permission.MANAGE), name=name)
        return Response(status=204)

    def _project(self, action: Permission) -> int:
        names = select_project(self.access, self.query.text("domain"), self.query.text("project"))
        return check_project(self.access, *names, action).project_id


def _read_value(request: Request) -> bytes:
    """Return the value in the body. Errors do not repeat parts of the body."""
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
            else Fault("", f"unknown field (known: {', '.join(known)})")
            for fault in error.faults
        ]
        raise InvalidSpec(faults) from None


_FIELDS = {
    *SecretRequest.model_fields,
    *(f"registry.{name}" for name in RegistryLogin.model_fields),
}
