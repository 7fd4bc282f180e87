"""Images of an engine: digests, and pulls with the credentials of the task."""

from collections.abc import Callable, Mapping
from typing import Any

from docker.utils import parse_repository_tag

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.runtime import EngineError


def digest_of(body: Mapping[str, Any], image: str) -> str:
    """Return the registry digest of an inspected image, preferably that of `image`'s repository.

    An image that was built locally has only the engine's own id.
    """
    repository, _ = parse_repository_tag(image)
    known = [str(item).rpartition("@") for item in body.get("RepoDigests") or ()]
    same = [digest for name, _, digest in known if name == repository]
    return (same or [digest for _, _, digest in known] or [str(body.get("Id") or "")])[0]


def pull(
    api: Any, image: str, on_progress: Callable[[int], None], registry: Registry | None
) -> int:
    """Pull `image`, report the downloaded percentage of the known size, and return its bytes.

    Without `registry`, the credentials in `~/.docker/config.json` of this process apply.
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
