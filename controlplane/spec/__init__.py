"""Job specification: one model for the API, the client and the JSON Schema."""

from controlplane.spec.documents import guess_language, read_document
from controlplane.spec.faults import Fault, InvalidSpec, UnreadableDocument
from controlplane.spec.group import TaskGroupSpec
from controlplane.spec.job import JobSpec
from controlplane.spec.parsing import json_schema, parse_job, parse_job_text

__all__ = [
    "Fault",
    "InvalidSpec",
    "JobSpec",
    "TaskGroupSpec",
    "UnreadableDocument",
    "guess_language",
    "json_schema",
    "parse_job",
    "parse_job_text",
    "read_document",
]
