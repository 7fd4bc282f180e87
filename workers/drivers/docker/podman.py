"""Adapt requests to Podman's socket, which has the same calls but other fields.

Podman silently ignores unknown fields in a container's body, and creates missing sources of mounts.
Based on its source (pkg/api/handlers/compat), versions 4 to 6. Only the bodies are tested, not a
running Podman; the rest of the driver is the same code.
"""

import os
from collections.abc import Mapping
from typing import Any

from workers.attempt.runtime import EngineError

GPU_DEVICE = "nvidia.com/gpu={}"  # CDI device names as nvidia-ctk generates them


def is_podman(version: Mapping[str, Any]) -> bool:
    """Return whether a response of /version comes from Podman."""
    return any("Podman" in str(part.get("Name")) for part in version.get("Components") or ())


def is_name_taken(error: EngineError) -> bool:
    """Return whether the container's name exists: Docker answers 409, Podman 500 with a text."""
    return error.status == 409 or "is already in use" in str(error)


def adapt(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of POST /containers/create for Podman.

    Raise EngineError if the source of a mount does not exist.
    """
    host = dict(body["HostConfig"])
    adapted = {name: part for name, part in body.items() if name != "NetworkDisabled"}
    if body.get("NetworkDisabled"):
        host["NetworkMode"] = "none"
    for request in host.pop("DeviceRequests", ()):
        names = [GPU_DEVICE.format(number) for number in request["DeviceIDs"]]
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": names}]
    for mount in host.get("Mounts") or ():
        if not os.path.lexists(mount["Source"]):
            raise EngineError(f"bind source path does not exist: {mount['Source']}", 400)
    return {**adapted, "HostConfig": host}
