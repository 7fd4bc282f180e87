"""Secrets: a name in a project and some bytes, sealed for that row only."""

import json

from controlplane.contract.messages.launch_context import Registry

MAX_VALUE_BYTES = 64 * 1024
"""Keys, tokens and certificates are smaller; what is larger is an input."""


def about_secret(project_id: int, name: str) -> str:
    """Return what a sealed value is bound to: copied into another row, it cannot be opened
    there.
    """
    return f"secret {project_id} {name}"


def registry_value(registry: Registry) -> bytes:
    """Return the value of a secret that is a login to a registry of images."""
    return json.dumps(registry.body(), separators=(",", ":")).encode()


def read_registry(value: bytes) -> Registry | None:
    """Return the login that a value is, however it was written; None: it is none."""
    try:
        body = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or set(body) != {"username", "password"}:
        return None
    username, password = body["username"], body["password"]
    if not isinstance(username, str) or not isinstance(password, str):
        return None
    return Registry(username, password)
