"""Build the document of a job from a request, as `cellrun submit` would read it from a file."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from slurm_commands.request import BatchRequest
from slurm_commands.start_script import (
    COMMAND,
    FOLDER,
    KILL_SECONDS,
    build_environment,
    build_start_script,
    lead_seconds,
)

# Labels of a job: its name as given, the indexes of its array, the limit of its time in seconds,
# and its CPUs, since lists have no large documents.
NAME_LABEL, ARRAY_LABEL, TIME_LABEL = "slurm/name", "slurm/array", "slurm/seconds"
CPUS_LABEL = "slurm/cpus"
_MAX_NAME = 63
_MAX_LABEL = 255
# Longer than the program needs to end by itself, so that it does.
_SPARE_SECONDS = 60


def build_document(
    request: BatchRequest, guid: str, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return the document of a job. Raise Refused."""
    domain, slash, project = (request.project or "").partition("/")
    document: dict[str, Any] = {
        "name": clean_name(request.name),
        "guid": guid,
        "domain": domain if slash else None,
        "project": (project if slash else domain) or None,
        "pool": request.pool,
        "annotation": request.comment or None,
        "labels": dict(_labels(request)),
        "command": COMMAND,
        "inputs": [
            {"path": f"{FOLDER}/environment", "content": build_environment(request, environ)},
            {"path": f"{FOLDER}/start", "content": build_start_script(request)},
            {"path": f"{FOLDER}/script", "content": request.script.text},
        ],
        "resources": {"cpu": request.cpus, "memory": f"{request.mib}Mi"},
        "constraints": list(request.constraints) or None,
        "depends_on": list(request.depends_on) or None,
        **_place(request),
        **_time(request),
    }
    if request.gpus:
        document["resources"]["gpu"] = request.gpus
    if not request.is_requeued:
        document["retries"] = {"failure": 0, "preemption": 0, "system": 0}
    if request.array:
        total = request.array.count
        # A failed task does not end the others; the job succeeds if all of them do.
        document |= {"replicas": total, "min_available": total, "max_task_failures": total}
        if request.array.limit:
            # A key of its own: only the tasks of this job count.
            document["concurrency"] = {"key": guid, "limit": request.array.limit}
    return {name: value for name, value in document.items() if value is not None}


def clean_name(name: str) -> str:
    """Return a name as a job may have it: lower case, at most 63 characters."""
    clean = re.sub(r"[^a-z0-9._-]", "-", name.lower()).lstrip("._-")
    return clean[:_MAX_NAME] or "job"


def name_label(name: str) -> str:
    """Return the value of the label with the name of a job."""
    return name[:_MAX_LABEL]


def _labels(request: BatchRequest) -> Iterator[tuple[str, str]]:
    yield NAME_LABEL, name_label(request.name)
    yield CPUS_LABEL, str(request.cpus)
    if request.array:
        yield ARRAY_LABEL, request.array.text
    if request.seconds is not None:
        yield TIME_LABEL, str(request.seconds)


def _place(request: BatchRequest) -> dict[str, Any]:
    """Return the fields about a plain process, or about an image with its folders mounted."""
    if request.image is None:
        return {"task_type": "process"}
    folders = {request.chdir}
    for pattern in (request.output, request.error):
        if pattern is not None:
            folder = str(PurePath(request.chdir, pattern).parent)
            if folder != "/dev":
                folders.add(folder)
    outermost = [
        folder
        for folder in sorted(folders)
        if not any(PurePath(folder).is_relative_to(other) for other in folders - {folder})
    ]
    return {
        "image": request.image,
        "user": f"{os.getuid()}:{os.getgid()}",
        "mounts": [{"source": f, "target": f, "read_only": False} for f in outermost],
    }


def _time(request: BatchRequest) -> dict[str, Any]:
    lead = lead_seconds(request)
    fields: dict[str, Any] = {}
    if request.signal:
        fields = {"stop_signal": request.signal[0], "stop_grace_seconds": lead}
    if request.seconds is None:
        return fields
    if request.array:
        return fields | {"timeout_seconds": request.seconds + KILL_SECONDS + _SPARE_SECONDS}
    return fields | {"timeout_seconds": request.seconds - lead}
