"""Secrets: named values of a project, each sealed for its own row."""

import json

from controlplane.contract.messages.launch_context import Registry

MAX_VALUE_BYTES = 64 * 1024
"""Keys, tokens and certificates are smaller; larger values belong into an input."""


def about_secret(project_id: int, name: str) -> str:
    """Return the context that a sealed value is bound to: it cannot be opened in another row."""
    return f"secret {project_id} {name}"


def registry_value(registry: Registry) -> bytes:
    """Return the value of a secret with a login to an image registry."""
    return json.dumps(registry.body(), separators=(",", ":")).encode()


def read_registry(value: bytes) -> Registry | None:
    """Return the registry login in `value`; None: it has another format."""
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
