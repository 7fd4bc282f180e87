"""Secrets: named values of a project, each sealed for its own row."""

import json

from controlplane.contract.images import DOCKER_HUB, normalize_registry
from controlplane.contract.messages.launch_context import Registry

MAX_VALUE_BYTES = 64 * 1024
"""Keys, tokens and certificates are smaller; larger values belong in an input."""


def about_secret(project_id: int, name: str) -> str:
    """Return the context to which a sealed value is bound: it cannot be opened in another row."""
    return f"secret {project_id} {name}"


def registry_value(registry: Registry) -> bytes:
    """Return a login to an image registry as the value of a secret."""
    return json.dumps(registry.body(), separators=(",", ":")).encode()


def read_registry(value: bytes) -> Registry | None:
    """Return the registry login in `value`, or None if it has another format.

    A login without a server, as earlier versions stored it, is for Docker Hub.
    """
    try:
        body = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or set(body) - {"server"} != {"username", "password"}:
        return None
    login = body["username"], body["password"], body.get("server", DOCKER_HUB)
    if not all(isinstance(part, str) for part in login):
        return None
    username, password, server = login
    return Registry(username, password, normalize_registry(server))
