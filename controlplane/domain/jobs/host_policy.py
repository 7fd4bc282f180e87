"""Host policy: mounts, capabilities and privileges that a pool allows its tasks.

It is checked on submission and retry only, as in Kubernetes' admission: a later restriction does
not affect existing jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controlplane.contract.messages.task_options import HARMLESS_CAPABILITIES, find_restricted
from controlplane.spec import JobSpec, TaskGroupSpec
from controlplane.spec.faults import Finding
from controlplane.spec.files import Mount


def find_policy_faults(
    spec: JobSpec,
    *,
    pool: str,
    allowed_mounts: Sequence[Mapping[str, Any]],
    privileged_allowed: bool,
    allowed_capabilities: Sequence[str] = (),
) -> Iterator[Finding]:
    """Yield a fault for each host access in `spec` that the pool's policy does not allow.

    `allowed_mounts`: {path, read_only} of the pool; each includes all paths below it.
    `allowed_capabilities`: those that tasks may have besides the ones that every task may have.
    """
    for position, group in enumerate(spec.groups):
        for place, text in (
            *_check_mounts(group, pool, allowed_mounts),
            *(() if privileged_allowed else _check_privileges(group, pool, allowed_capabilities)),
        ):
            yield ("groups", position, *place), text


def _check_mounts(
    group: TaskGroupSpec, pool: str, allowed: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    for position, mount in enumerate(group.mounts):
        covering = [item for item in allowed if _covers(str(item["path"]), mount.source)]
        if not covering:
            text = (
                f"pool {pool} allows no mount of {mount.source}; it allows {_mount_list(allowed)}"
            )
            yield ("mounts", position, "source"), text
        elif not mount.read_only and not any(_is_writable(item) for item in covering):
            yield ("mounts", position, "read_only"), _read_only_text(mount, pool)


def _read_only_text(mount: Mount, pool: str) -> str:
    return f"pool {pool} allows {mount.source} to be read only: must be true"


def _check_privileges(group: TaskGroupSpec, pool: str, allowed: Sequence[str]) -> Iterator[Finding]:
    if group.privileged:
        yield ("privileged",), f"pool {pool} allows no privileged tasks"
    restricted = find_restricted(group.capabilities, allowed)
    names = ", ".join(sorted({*HARMLESS_CAPABILITIES, *allowed}))
    for position, name in enumerate(group.capabilities):
        if name in restricted:
            text = f"pool {pool} allows no privileged tasks, and so of capabilities only {names}"
            yield ("capabilities", position), text


def _covers(allowed: str, source: str) -> bool:
    """Return whether `source` is the path `allowed` or below it."""
    parts = _parts(allowed)
    return _parts(source)[: len(parts)] == parts


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _is_writable(item: Mapping[str, Any]) -> bool:
    return item.get("read_only", True) is False


def _mount_list(allowed: Sequence[Mapping[str, Any]]) -> str:
    texts = [f"{item['path']}{'' if _is_writable(item) else ' (read only)'}" for item in allowed]
    return ", ".join(sorted(texts)) or "none"
