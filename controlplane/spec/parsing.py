"""Parsing of a document to a JobSpec or all its faults, and the JSON Schema of a job."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema

from controlplane.spec.documents import (
    check_plain,
    find_value_fault,
    guess_language,
    read_document,
)
from controlplane.spec.faults import (
    Fault,
    InvalidSpec,
    Place,
    UnreadableDocument,
    path_of,
    read_fault,
)
from controlplane.spec.group import Defaults, TaskGroupSpec
from controlplane.spec.job import JobFields, JobSpec, ShortJob
from controlplane.spec.parts import RetryRuleSpec
from controlplane.spec.rules import find_faults

M = TypeVar("M", bound=BaseModel)

MAX_FAULTS = 100


def parse_job(body: object) -> JobSpec:
    """Parse a decoded document. Raise InvalidSpec with every fault."""
    is_short = isinstance(body, dict) and "groups" not in body
    text = "a job is a mapping of names to values"
    if is_short:
        job = read_model(ShortJob, body, _KNOWN_SHORT, not_mapping=text).expanded()
    else:
        job = read_model(JobSpec, body, _KNOWN, not_mapping=text)
    faults = [Fault(field_path(place, is_short=is_short), text) for place, text in find_faults(job)]
    if faults:
        raise InvalidSpec(faults[:MAX_FAULTS])
    return job


def read_model(
    model: type[M], body: object, known_fields: Mapping[str, str], *, not_mapping: str
) -> M:
    """Parse a decoded document as a `model`. Raise InvalidSpec with every fault.

    `known_fields`: fields with their correct place. `not_mapping`: the fault if the document is not
    a mapping.
    """
    if not isinstance(body, dict):
        raise InvalidSpec([Fault("", not_mapping)])
    try:
        check_plain(body)
        return model.model_validate(body)
    except UnreadableDocument as error:
        place, text = find_value_fault(body) or ((), str(error))
        raise InvalidSpec([Fault(path_of(place), text)]) from None
    except ValidationError as error:
        raise InvalidSpec(_read_errors(error, known_fields)) from None


def parse_part(model: type[M], body: object) -> M:
    """Parse a small document as a `model`. Raise InvalidSpec with every fault."""
    try:
        check_plain(body)
        return model.model_validate(body)
    except UnreadableDocument as error:
        place, text = find_value_fault(body) or ((), str(error))
        raise InvalidSpec([Fault(path_of(place), text)]) from None
    except ValidationError as error:
        known_fields = dict.fromkeys(model.model_fields, "at the top")
        raise InvalidSpec(_read_errors(error, known_fields)) from None


def parse_job_text(text: str) -> JobSpec:
    """Parse a job in JSON or YAML. Raise UnreadableDocument or InvalidSpec."""
    return parse_job(read_document(text, guess_language(text)))


def field_path(place: Place, *, is_short: bool) -> str:
    """Return the path of a field as submitted: the short form has no `groups[0]`."""
    return path_of(place[2:] if is_short and place[:1] == ("groups",) else place)


def job_schemas(ref_template: str) -> dict[str, Any]:
    """Return the JSON Schemas of `JobDocument` (either form of a job) and of its parts, by name."""
    _, found = models_json_schema(
        [(JobSpec, "validation"), (ShortJob, "validation")], ref_template=ref_template
    )
    schemas: dict[str, Any] = found["$defs"]
    forms = [{"$ref": ref_template.format(model=name)} for name in ("JobSpec", "ShortJob")]
    schemas["JobDocument"] = {
        "description": "A job with groups, or with the fields of its one group at the top.",
        "anyOf": forms,
    }
    return schemas


def json_schema() -> dict[str, Any]:
    """Return one self-contained JSON Schema (2020-12) of a job as submitted."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Cellrun job",
        "$ref": "#/$defs/JobDocument",
        "$defs": job_schemas("#/$defs/{model}"),
    }


def _read_errors(error: ValidationError, known_fields: Mapping[str, str]) -> list[Fault]:
    errors = error.errors(include_url=False, include_input=False)
    return [
        read_fault(item, _IN_RETRY_RULE if "on_exit" in item["loc"][:-1] else known_fields)
        for item in errors[:MAX_FAULTS]
    ]


_IN_RETRY_RULE = dict.fromkeys(RetryRuleSpec.model_fields, "in a rule of on_exit")
_AT_TOP = dict.fromkeys(JobFields.model_fields.keys() - Defaults.model_fields.keys(), "at the top")
_IN_GROUP = dict.fromkeys(
    TaskGroupSpec.model_fields.keys() - Defaults.model_fields.keys() - {"name", "depends_on"},
    "in a group, or at the top of a job without groups",
)
_KNOWN: Mapping[str, str] = {**_AT_TOP, **_IN_GROUP}
_KNOWN_SHORT: Mapping[str, str] = {**_IN_GROUP, **_AT_TOP}
