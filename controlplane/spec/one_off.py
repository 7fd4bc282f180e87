"""Conversion of one-off tasks (guid, domain, definition, as in Diego) to jobs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from controlplane.spec.faults import Fault, InvalidSpec
from controlplane.spec.fields import CallbackUrl, Model, Name
from controlplane.spec.group import GroupFields
from controlplane.spec.job import MAX_ANNOTATION, JobSpec
from controlplane.spec.parsing import parse_job, read_model
from controlplane.spec.parts import Retries

# Seconds from completion until the task is deleted, resolved or not (as in Diego).
TTL_SECONDS = 120
ONE_OFF_GUID = r"[A-Za-z0-9_-]{1,255}"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_OTHER_NAME = "task"


def _check_guid(text: str) -> str:
    if text.isdigit():
        raise ValueError("must not consist of digits only: in a URL that is the id of a task")
    return text


OneOffGuid = Annotated[str, Field(pattern=f"^{ONE_OFF_GUID}$"), AfterValidator(_check_guid)]
ProjectPath = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}/[a-z0-9][a-z0-9._-]{0,62}$")
]
OneOffDomain = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,255}$")]


class OneOffDefinition(GroupFields):
    """Definition of a one-off task: the fields of a group of one task, and a callback."""

    replicas: Literal[1] = 1
    min_available: None = None
    retries: Retries | None = Field(default=None, description="Default: no retries.")
    delivery: Literal["at_least_once", "at_most_once"] = Field(
        default="at_most_once",
        description="at_most_once: no retry once a container may have existed.",
    )
    pool: Name = "default"
    band: Literal["production", "interactive", "batch"] = "interactive"
    annotation: str = Field(default="", max_length=MAX_ANNOTATION)
    completion_callback_url: CallbackUrl | None = Field(
        default=None, description="Receives a signed POST request once the task has completed."
    )


class OneOffRequest(Model):
    """A one-off task: it runs once and is deleted two minutes after completion."""

    guid: OneOffGuid = Field(description="Unique in the project; not only digits.")
    domain: OneOffDomain = Field(description="A label of the client's, to list its tasks by.")
    project: ProjectPath = Field(
        default="default/default", description="The project of the task: domain/name."
    )
    definition: OneOffDefinition


@dataclass(frozen=True, slots=True)
class OneOffSpec:
    """A valid one-off task, its job, and the document of the job."""

    guid: str
    domain: str
    job: JobSpec
    document: Mapping[str, Any]


def parse_one_off(body: Any) -> OneOffSpec:
    """Parse a decoded document. Raise InvalidSpec with every fault."""
    text = "a task is a mapping: guid, domain, definition"
    request = read_model(OneOffRequest, body, _KNOWN, not_mapping=text)
    document = _job_document(request, body["definition"])
    try:
        job = parse_job(document)
    except InvalidSpec as error:
        raise InvalidSpec([fault_of_task(fault) for fault in error.faults]) from None
    return OneOffSpec(request.guid, request.domain, job, document)


def fault_of_task(fault: Fault) -> Fault:
    """Convert a fault of the job to one of the submitted field of the definition."""
    if fault.field == "callback.url":
        return Fault("definition.completion_callback_url", fault.detail)
    if fault.field == "project":
        return fault
    if fault.field.partition(".")[0] in _JOB_ONLY_FIELDS:
        return Fault("definition", fault.detail)
    return Fault(f"definition.{fault.field}", fault.detail)


# Fields of a job that a definition does not have.
_JOB_ONLY_FIELDS = frozenset({"", "domain", "name", "replicas"})
_KNOWN = {
    **dict.fromkeys(OneOffDefinition.model_fields, "in the definition"),
    **dict.fromkeys(("guid", "domain", "project", "definition"), "at the top"),
}


def _job_document(request: OneOffRequest, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a job of one group, by default without retries.

    It has no guid, because guids of Diego may be invalid for jobs.
    """
    fields = {
        name: value for name, value in definition.items() if name not in _DEFINITION_ONLY_FIELDS
    }
    if request.definition.completion_callback_url is not None:
        fields["callback"] = {"url": request.definition.completion_callback_url, "on": "task"}
    domain, _, project = request.project.partition("/")
    return {
        "domain": domain,
        "project": project,
        "delivery": request.definition.delivery,
        **fields,
        "name": request.guid if _NAME.fullmatch(request.guid) else _OTHER_NAME,
        "retries": {"failure": 0, "preemption": 0, "system": 0, **(fields.get("retries") or {})},
    }


_DEFINITION_ONLY_FIELDS = frozenset({"completion_callback_url", "replicas", "min_available"})
