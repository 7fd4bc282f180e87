"""Launch data: the part of a group's definition that cells receive; pure."""

import hashlib
from typing import Any

from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.messages.orders import OWN_TASK_TYPES
from controlplane.spec import TaskGroupSpec
from controlplane.spec.files import body_of
from controlplane.spec.services import HealthCheck as HealthCheckSpec

# Fields that are copied unchanged; inputs, options and the health check are converted.
_COPIED = (
    "task_type",
    "image",
    "command",
    "entrypoint",
    "workdir",
    "user",
    "env",
    "result_file",
    "timeout_seconds",
    "stop_grace_seconds",
    "stop_signal",
    "pull_policy",
    "max_pids",
    "read_only",
)
# Fields that are copied only if set, because few groups use them.
_COPIED_IF_SET = (
    "registry_secret",
    "stdin",
    "stdout",
    "stderr",
    "checkpoint_path",
    "output_base",
    "privileged",
    "capabilities",
    "idle_timeout_seconds",
    "lifetime_seconds",
    "ports",
)
_OPTIONS = ("secrets", "outputs", "mounts", "tmpfs")


def launch_of(
    group: TaskGroupSpec,
    *,
    exclusive: bool,
    network: str = "default",
    is_gang: bool = False,
    default_disk_mib: int = 0,
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the launch data of `group`, and the contents of its inputs by SHA-256.

    `default_disk_mib`: the limit of a group that requests no disk; 0: none. It does not apply to
    runners, whose tasks write nothing on the cell.
    """
    values = group.__dict__  # getattr of a pydantic model is slower
    launch: dict[str, Any] = {name: values[name] for name in _COPIED}
    launch |= {name: value for name in _COPIED_IF_SET if (value := values[name])}
    launch |= {
        name: [body_of(item) for item in items] for name in _OPTIONS if (items := values[name])
    }
    if is_gang:
        launch["is_gang"] = True
    if default_disk_mib and not group.resources.disk and group.task_type in OWN_TASK_TYPES:
        launch["disk_limit_mib"] = default_disk_mib
    if group.health_check is not None:
        launch["health_check"] = _health_check_of(group.health_check).body()
    launch["exclusive"] = exclusive
    launch["network"] = network
    launch["shm_mib"] = group.shm
    inputs: list[dict[str, str]] = []
    contents: dict[str, bytes] = {}
    for item in group.inputs:
        if item.from_ is not None:
            source = {"path": item.path, "from_group": item.from_.group}
            output = item.from_.output
            inputs.append(source | ({} if output is None else {"output": output}))
        elif item.content is not None:
            content = item.content.encode()
            digest = hashlib.sha256(content).hexdigest()
            contents[digest] = content
            inputs.append({"path": item.path, "sha256": digest})
        elif item.url is not None:
            source = {"path": item.path, "url": item.url}
            inputs.append(source | ({"sha256": item.sha256} if item.sha256 else {}))
    launch["inputs"] = inputs
    return launch, contents


def time_limit_of(group: TaskGroupSpec) -> tuple[float | None, bool]:
    """Return the maximum RUNNING time of an attempt in seconds (None: no limit).

    The second value: whether that limit is the lifetime, because it is less than the timeout.
    """
    timeout, lifetime = group.timeout_seconds, group.lifetime_seconds
    if lifetime is not None and (timeout is None or lifetime < timeout):
        return lifetime, True
    return timeout, False


def _health_check_of(check: HealthCheckSpec) -> HealthCheck:
    return HealthCheck(
        command=tuple(check.command or ()),
        port=check.http.port if check.http is not None else None,
        path=check.http.path if check.http is not None else "/",
        interval_seconds=check.interval_seconds,
        timeout_seconds=check.timeout_seconds,
        retries=check.retries,
        start_period_seconds=check.start_period_seconds,
    )
