"""Images of an engine: which image a name stands for, and pulls, each with its own credentials."""

from collections.abc import Callable, Mapping
from typing import Any

from docker.utils import parse_repository_tag

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.runtime import EngineError


def digest_of(body: Mapping[str, Any], image: str) -> str:
    """The digest that a registry has for an inspected image, that of `image` first.

    One that no registry knows, as it was built here, has the engine's own.
    """
    repository, _ = parse_repository_tag(image)
    known = [str(item).rpartition("@") for item in body.get("RepoDigests") or ()]
    same = [digest for name, _, digest in known if name == repository]
    return (same or [digest for _, _, digest in known] or [str(body.get("Id") or "")])[0]


def pull(
    api: Any, image: str, on_progress: Callable[[int], None], registry: Registry | None
) -> int:
    """Pull `image`, reporting the downloaded share of the known size; return its bytes.

    Without `registry` it is pulled as the user of this process, whose `~/.docker/config.json` may
    have credentials.
    """
    repository, tag = parse_repository_tag(image)
    auth = None
    if registry is not None:
        auth = {"username": registry.username, "password": registry.password}
    layers: dict[str, tuple[int, int]] = {}
    lines = api.pull(repository, tag or "latest", stream=True, decode=True, auth_config=auth)
    for line in lines:
        if "error" in line:
            raise EngineError(str(line["error"]))
        detail = line.get("progressDetail") or {}
        if line.get("status") == "Downloading" and detail.get("total"):
            layers[line.get("id", "")] = (int(detail["current"]), int(detail["total"]))
            total = sum(size for _, size in layers.values())
            on_progress(99 * sum(done for done, _ in layers.values()) // total)
    return sum(size for _, size in layers.values())
