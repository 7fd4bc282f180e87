"""Derive the OpenAPI description from the viewsets: operation ids, pages, bodies and problems."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
)
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic.json_schema import model_json_schema
from rest_framework.permissions import SAFE_METHODS
from rest_framework.serializers import BaseSerializer

from controlplane.api.description.examples import BODIES, example_of
from controlplane.api.schemas import Problem
from controlplane.spec.parsing import job_schemas

F = TypeVar("F", bound=Callable[..., Any])

_REF = "#/components/schemas/{model}"
_PROBLEMS = {
    400: "The body or a query parameter is malformed.",
    401: "The token is missing, unknown or expired.",
    403: "The token or the signature does not permit the request.",
    404: "The object does not exist, or is not visible to the caller.",
    409: "The request conflicts with the present state.",
    410: "The stored output has reached its maximum size, or the position is too old.",
    413: "The body or the file exceeds the size limit.",
    415: "The body is neither JSON nor YAML.",
    416: "The file has fewer bytes than the beginning of the requested range.",
    422: "Fields are invalid or exceed limits; `errors` names all of them.",
    429: "The token, or the address without one, has sent too many or too expensive requests.",
    503: "The store, or the database, does not accept work now.",
    507: "The store has too little free space, or the project has reached its limit: see `code`.",
}
_RETRY_AFTER = {
    "description": "Seconds after which the request can be repeated.",
    "schema": {"type": "integer", "minimum": 1},
}
ONLY_PROJECT = (
    "Without both parameters, callers without a role on `default/default` get their only project;"
    " with several projects, 422 with the names."
)
"""For parameters that `walls.select_project` reads."""

SINCE_EXAMPLE = "2031-05-04T12:00:00Z"

FIELDS = "fields"
_SELECTED = {"type": "object", "description": "With `fields`: only the fields that it names."}
_BYTES = {"type": "string", "format": "binary"}
_IDS = {
    "list": "list_{noun}s",
    "create": "submit_{noun}",
    "retrieve": "get_{noun}",
    "update": "put_{noun}",
    "destroy": "delete_{noun}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A decorator that describes what cannot be derived from a view's method and its docstring.

    `id`: if it is neither that of a standard action nor the method's name. `answer`: a serializer
    or model if it is not the view's, or a media type, with an `example` of the text. `codes`: if
    not 200, or 204 of a deletion. `page`: whether the response is a page of a list. `body`: a
    model, a JSON schema, or bytes.
    `parameters`: of the query; `ApiView.query` accepts no others. `problems`: in addition to those
    that follow from method, path, parameters and body.
    """

    id: str | None = None
    answer: Any = None
    example: str | None = None
    codes: Sequence[int] = (200,)
    page: bool = False
    body: Any = None
    parameters: Sequence[OpenApiParameter] = ()
    problems: Sequence[int] = ()

    def __call__(self, method: F) -> F:
        """Attach the description to the method."""
        method.operation = self  # type: ignore[attr-defined]
        return method

    @property
    def query(self) -> list[OpenApiParameter]:
        """Return all parameters of the query."""
        return [*self.parameters, *(PAGING if self.page else ())]


def operation_of(view: Any) -> Operation:
    """Return the description of the view's action."""
    found: Operation = getattr(getattr(view, view.action), "operation", Operation())
    return found


def parameter(
    name: str, text: str, kind: type = str, *, many: bool = False, example: str | None = None
) -> OpenApiParameter:
    """Return the description of a query parameter."""
    examples = () if example is None else (OpenApiExample(f"{name}={example}", example),)
    return OpenApiParameter(name, kind, description=text, many=many, examples=examples)


def fields_parameter(example: str) -> OpenApiParameter:
    """Return the parameter that selects fields, which `ApiView.answer_page` reads."""
    text = "Names of the fields of each result, separated by commas; default: all."
    return parameter(FIELDS, text, example=example)


PAGING = [
    parameter("limit", "Maximum number of results, from 1 to 1000; default 100.", int),
    parameter("cursor", "Position of the page, as in the URL of `next`."),
]


class ApiSchema(AutoSchema):
    """The description of one operation."""

    view: Any

    @property
    def operation(self) -> Operation:
        """Return the description attached to the method."""
        return operation_of(self.view)

    def get_operation_id(self) -> str:
        """Name the operation after its method, or after the resource."""
        action = self.view.action
        derived = _IDS.get(action, action).format(noun=self.view.basename)
        return self.operation.id or derived

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters of the query."""
        return self.operation.query

    def _is_list_view(self, serializer: Any = None) -> bool:
        return self.operation.page

    def _get_request_body(self, direction: str = "request") -> dict[str, Any] | None:
        body = self.operation.body
        if body is None:
            return None
        if body is bytes:
            return {"content": {"application/octet-stream": {"schema": _BYTES}}}
        schema = body if isinstance(body, dict) else self._ref(body, direction)
        content: dict[str, Any] = {name: {"schema": schema} for name in self.map_parsers()}
        example = BODIES.get(self.get_operation_id())
        if example is not None:
            content["application/json"]["example"] = example
        return {"content": content}

    def _get_parameters(self) -> list[dict[str, Any]]:
        """Add examples to the parameters of the path."""
        found: list[dict[str, Any]] = super()._get_parameters()
        for item in found:
            example = example_of(self.path, item["name"]) if item["in"] == "path" else None
            if example is not None:
                item["example"] = example
        return found

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = {str(code): self._answer() for code in self.operation.codes}
        if self.view.action == "destroy":
            bodies = {"204": {"description": "No response body"}}
        if self.method in SAFE_METHODS and not isinstance(self.operation.answer, str):
            bodies["304"] = {"description": "The client has this document: see `If-None-Match`."}
        problem = {"application/problem+json": {"schema": self._ref(Problem)}}
        for code in sorted(self._problems()):
            bodies[str(code)] = {"content": problem, "description": _PROBLEMS[code]}
            if code in (429, 503, 507):
                bodies[str(code)]["headers"] = {"Retry-After": _RETRY_AFTER}
        return bodies

    def _answer(self) -> dict[str, Any]:
        answer = self.operation.answer or self.view.serializer_class or self.view.document
        if isinstance(answer, str):
            text = _BYTES if answer == "application/octet-stream" else {"type": "string"}
            content: dict[str, Any] = {"schema": text}
            if self.operation.example is not None:
                content["example"] = self.operation.example
            return {"content": {answer: content}, "description": ""}
        schema = self._ref(answer)
        if any(known.name == FIELDS for known in self.operation.query):
            schema = {"anyOf": [schema, _SELECTED]}
        if self.operation.page:
            schema = {"type": "array", "items": schema}
            schema = self.view.pagination_class().get_paginated_response_schema(schema)
        return {"content": {"application/json": {"schema": schema}}, "description": ""}

    def _problems(self) -> set[int]:
        # Every request needs the database.
        operation, codes = self.operation, {429, 503, *self.operation.problems}
        if self.view.get_authenticators():
            codes |= {401} if self.method in SAFE_METHODS else {401, 403}
        if "{" in self.path:
            codes.add(404)
        if operation.query:
            codes.add(400)
        if operation.body not in (None, bytes):
            codes |= {400, 413, 415, 422}
        return codes

    def _ref(self, model: Any, direction: Any = "response") -> dict[str, Any]:
        ref: dict[str, Any] = self.resolve_serializer(model, direction).ref
        return ref

    def _postprocess_serializer_schema(
        self, schema: dict[str, Any], serializer: Any, direction: str
    ) -> dict[str, Any]:
        """Require all fields of serializers, since they describe responses only."""
        if not isinstance(serializer, BaseSerializer):
            return schema
        fields = schema["properties"]
        for field in fields.values():
            field.pop("x-spec-enum-id", None)
            field.pop("readOnly", None)
        return {**schema, "required": [*fields], "additionalProperties": False}


class PydanticModel(OpenApiSerializerExtension):
    """Describe pydantic models, as validated in requests or serialized in responses."""

    target_class = "pydantic.BaseModel"
    match_subclasses = True
    priority = 1

    def get_name(self, auto_schema: Any, direction: str) -> str:
        """Return the name of the component."""
        return str(self.target.__name__)

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        """Return the schema of the model, and register those of its parts as components."""
        mode: Any = "validation" if direction == "request" else "serialization"
        schema = model_json_schema(self.target, ref_template=_REF, mode=mode)
        for name, part in schema.pop("$defs", {}).items():
            kind = ResolvedComponent.SCHEMA
            component = ResolvedComponent(name=name, type=kind, object=name, schema=part)
            auto_schema.registry.register_on_missing(component)
        return schema


class BearerScheme(OpenApiAuthenticationExtension):
    """Describe the authentication of callers in the OpenAPI document."""

    target_class = "controlplane.api.base.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the scheme of a bearer token."""
        return {"type": "http", "scheme": "bearer"}


def ref(name: str) -> dict[str, Any]:
    """Return a reference to the component `name`."""
    return {"$ref": _REF.format(model=name)}


def add_job_schemas(result: dict[str, Any], **context: Any) -> Mapping[str, Any]:
    """Add the schema of a job, which has two forms (a hook of drf-spectacular)."""
    schemas = result["components"]["schemas"]
    result["components"]["schemas"] = dict(sorted({**schemas, **job_schemas(_REF)}.items()))
    return result
