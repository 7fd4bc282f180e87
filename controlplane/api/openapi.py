"""Build the OpenAPI description from the views and the document models."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from controlplane.api import callback_schemas, schemas, secret_schemas
from controlplane.spec.one_off import OneOffRequest
from controlplane.spec.parsing import job_schemas

_REF = "#/components/schemas/{model}"
_ANSWERS: tuple[type[BaseModel], ...] = (
    schemas.Job,
    schemas.Batch,
    schemas.Task,
    schemas.Claim,
    schemas.Explanation,
    schemas.DryRun,
    schemas.Attempt,
    schemas.Artifact,
    schemas.Change,
    callback_schemas.CallbackDetail,
    callback_schemas.CallbackKey,
    schemas.Cell,
    schemas.Pool,
    schemas.Quota,
    secret_schemas.StoredSecret,
    schemas.UploadSize,
    schemas.Problem,
)
_REQUESTS: tuple[type[BaseModel], ...] = (
    schemas.CancelRequest,
    schemas.ReleaseRequest,
    schemas.DrainRequest,
    schemas.EmptyRequest,
    schemas.PoolRequest,
    schemas.QuotaRequest,
    secret_schemas.SecretRequest,
    OneOffRequest,
)
_PROBLEMS = {
    400: "The body or the query cannot be read.",
    401: "The token is missing, unknown or expired.",
    403: "The token does not allow this.",
    404: "There is no such thing.",
    409: "It contradicts what is there already.",
    410: "No more is kept.",
    413: "The body is larger than is taken.",
    415: "The body is neither JSON nor YAML.",
    422: "Fields are wrong, or limits exceeded; all are named.",
}
BYTES = {"application/octet-stream": {"type": "string", "format": "binary"}}


class BearerScheme(OpenApiAuthenticationExtension):
    """Describe the authentication of callers in the OpenAPI document."""

    target_class = "controlplane.api.base.BearerAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """A bearer token."""
        return {"type": "http", "scheme": "bearer"}


def ref(name: str) -> dict[str, Any]:
    """A reference to the model `name`."""
    return {"$ref": _REF.format(model=name)}


def page_of(name: str) -> dict[str, Any]:
    """A page of a list of `name`."""
    return {
        "type": "object",
        "required": ["results", "next"],
        "properties": {
            "results": {"type": "array", "items": ref(name)},
            "next": {"type": ["string", "null"], "format": "uri"},
        },
    }


def parameter(name: str, text: str, kind: type = str, *, many: bool = False) -> OpenApiParameter:
    """A parameter of the query."""
    return OpenApiParameter(name, kind, description=text, many=many)


PAGING = [
    parameter("limit", "At most so many, up to 1000; 100 if it is missing.", int),
    parameter("cursor", "Where the page begins; taken from `next`."),
]


def describe(
    operation: str,
    *,
    answers: Mapping[Any, Any],
    body: str | dict[str, Any] | None = None,
    parameters: Sequence[OpenApiParameter] = (),
    problems: Sequence[int] = (),
    is_open: bool = False,
) -> Callable[..., Any]:
    """Describes a method of a view, whose docstring is the text. `is_open`: needs no token."""
    schema = ref(body) if isinstance(body, str) else body
    codes = [*problems] if is_open else [401, *problems]
    responses: dict[Any, Any] = dict(answers)
    for code in sorted(codes):
        responses[code, "application/problem+json"] = OpenApiResponse(
            ref("Problem"), description=_PROBLEMS[code]
        )
    request: Any = None
    if schema is not None:
        request = {"application/json": schema, "application/yaml": schema}
        if "type" in schema:
            request = {"application/octet-stream": schema}
    options: dict[str, Any] = {"auth": []} if is_open else {}
    return extend_schema(
        operation_id=operation,
        request=request,
        responses=responses,
        parameters=list(parameters),
        **options,
    )


def add_components(result: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Adds the models that the descriptions refer to (a hook of drf-spectacular)."""
    _, answered = models_json_schema(
        [(model, "serialization") for model in _ANSWERS], ref_template=_REF
    )
    _, taken = models_json_schema([(model, "validation") for model in _REQUESTS], ref_template=_REF)
    schemas = {**job_schemas(_REF), **taken["$defs"], **answered["$defs"]}
    components = result.setdefault("components", {})
    components["schemas"] = dict(sorted({**components.get("schemas", {}), **schemas}.items()))
    return result
