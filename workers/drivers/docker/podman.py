"""Where Podman's socket differs from Docker's: the same calls, and bodies that mean the same there.

Podman ignores, without a word, what it does not know in a container's body, and makes what a mount
names and the host lacks. Read from its source (pkg/api/handlers/compat), versions 4 to 6; not run
here: the bodies are tested, and the rest of the driver is the same code.
"""

import os
from collections.abc import Mapping
from typing import Any

from workers.attempt.runtime import EngineError

GPU_DEVICE = "nvidia.com/gpu={}"  # as NVIDIA's own tool names them for CDI


def is_podman(version: Mapping[str, Any]) -> bool:
    """Return whether the answer of /version is that of Podman."""
    return any("Podman" in str(part.get("Name")) for part in version.get("Components") or ())


def is_name_taken(error: EngineError) -> bool:
    """Return whether a container was refused for its name: Docker answers 409, Podman 500 with a
    text.
    """
    return error.status == 409 or "is already in use" in str(error)


def adapt(body: dict[str, Any]) -> dict[str, Any]:
    """The body of POST /containers/create for Podman. Raises EngineError: a mount of nothing."""
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
