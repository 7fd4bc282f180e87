"""The registry of an image, as Docker Engine and Podman find it in the image's name.

A login to one registry must not be sent to another: both control plane and cell compare them.
"""

DOCKER_HUB = "docker.io"
_HUB_ALIAS = "index.docker.io"


def registry_of(image: str) -> str:
    """Return the registry of an image reference as host[:port]; without one, Docker Hub.

    The part before the first "/" is a host if it has a dot, a colon or an upper-case letter, or is
    `localhost`; otherwise it belongs to the path.
    """
    first, slash, _ = image.partition("/")
    is_host = first == "localhost" or "." in first or ":" in first or first != first.lower()
    return normalize_registry(first) if slash and is_host else DOCKER_HUB


def normalize_registry(server: str) -> str:
    """Return the registry `server` (host[:port]) in the spelling that `registry_of` returns."""
    lowered = server.lower()
    return DOCKER_HUB if lowered == _HUB_ALIAS else lowered
