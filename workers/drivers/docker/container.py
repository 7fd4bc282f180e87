"""Translate a task's spec into an Engine API container: limits, isolation, name and labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.contract.messages.orders import GroupSpec
from controlplane.contract.messages.task_options import USUAL_CAPABILITIES
from workers.attempt.environment import inner_ports, port_variable
from workers.attempt.events import Launch
from workers.attempt.runtime import ContainerStatus, ContainerView, PlacedFile, ResourceUsage
from workers.drivers.docker import logs
from workers.drivers.docker.networks import MAX_HOST_NAME, member_name
from workers.drivers.gpus import format_gpus

MIN_CPU_MILLIS = 10  # the engine's own minimum, 0.01 core
GPUS_LABEL = "cellrun.gpus"
ZERO_TIME = "0001-01-01T00:00:00Z"
ALIVE = ("running", "paused", "restarting", "stopping")
# The engine keeps five files of output, all but the last compressed. A cell that was down, or is
# slow, loses no output while it lags behind a task by less than that.
LOG_BOUNDS = {"max-size": "20m", "max-file": "5"}


def container_body(
    launch: Launch,
    *,
    labels: Mapping[str, str],
    mounts: Sequence[Mapping[str, Any]],
    log_driver: str,
    publish_on: str = "",
    gpus: Sequence[int] = (),
    network: Mapping[str, Any] | None = None,
    cgroup_parent: str = "",
) -> dict[str, Any]:
    """Return the body of POST /containers/create for `launch`.

    `publish_on`: the host address on which ports are published; empty: all. `gpus`: the numbers of
    its GPUs. `network`: the parts of the body that join its network. `cgroup_parent`: empty
    for the engine's default.
    """
    spec = launch.spec
    env = {**spec.env, **launch.env}
    env |= {port_variable(name): str(port) for name, port in inner_ports(spec.ports).items()}
    body: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": dict(labels),
        "StopSignal": f"SIG{spec.stop_signal.removeprefix('SIG')}",
        "NetworkDisabled": spec.network == "none",
        "HostConfig": host_config(launch, mounts=mounts, log_driver=log_driver),
    }
    if spec.ports:
        keys = [f"{port}/tcp" for port in inner_ports(spec.ports).values()]
        body["ExposedPorts"] = {key: {} for key in keys}
        # Port 0: the engine chooses a free one.
        bound = [{"HostIp": publish_on, "HostPort": "0"}]
        body["HostConfig"]["PortBindings"] = dict.fromkeys(keys, bound)
    if gpus:
        body["Labels"][GPUS_LABEL] = format_gpus(gpus)
        body["HostConfig"]["DeviceRequests"] = [
            {"DeviceIDs": [str(number) for number in gpus], "Capabilities": [["gpu"]]}
        ]
    if spec.is_gang and len(name := member_name(launch)) <= MAX_HOST_NAME:
        body["Hostname"] = name
    if network is not None:
        body["HostConfig"] |= network["HostConfig"]
        body |= {name: part for name, part in network.items() if name != "HostConfig"}
    if cgroup_parent:
        body["HostConfig"]["CgroupParent"] = cgroup_parent
    if spec.stdin is not None:
        body |= {"AttachStdin": True, "OpenStdin": True, "StdinOnce": True}
    if spec.command:
        body["Cmd"] = list(spec.command)
    if spec.entrypoint is not None:
        body["Entrypoint"] = list(spec.entrypoint) or [""]  # [""] overrides the image's with none
    if spec.workdir is not None:
        body["WorkingDir"] = spec.workdir
    if spec.user is not None:
        body["User"] = spec.user
    return body


def ports_of(body: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    """Return the host port of each port name, from an inspected container."""
    published = (body.get("NetworkSettings") or {}).get("Ports") or {}
    found = {}
    for name, port in inner_ports(names).items():
        bindings = published.get(f"{port}/tcp") or ()
        if bindings:
            found[name] = int(bindings[0]["HostPort"])
    return found


def use_of(body: Mapping[str, Any]) -> ResourceUsage:
    """Return the usage of a container, from the engine's statistics."""
    cpu = ((body.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage") or 0
    networks = (body.get("networks") or {}).values()
    return ResourceUsage(int(cpu) / 1e9, sum(int(item.get("tx_bytes") or 0) for item in networks))


def view_of(body: dict[str, Any]) -> ContainerView:
    """Return the view of an inspected container."""
    state = body["State"]
    state_name = str(state.get("Status")).lower()
    started_at = _instant(state.get("StartedAt"))
    if state.get("Running") or state_name in ALIVE:
        status = ContainerStatus.RUNNING
    elif started_at is None or state_name in ("created", "configured", "initialized"):
        status = ContainerStatus.CREATED
    else:
        status = ContainerStatus.ENDED
    return ContainerView(
        status,
        container_id=str(body["Id"]),
        exit_code=int(state.get("ExitCode") or 0) if status is ContainerStatus.ENDED else None,
        out_of_memory=bool(state.get("OOMKilled")),
        started_at=started_at,
        ended_at=_instant(state.get("FinishedAt")) if status is ContainerStatus.ENDED else None,
        error=str(state.get("Error") or ""),
        pid=int(state.get("Pid") or 0) or None,
    )


def _instant(stamp: Any) -> float | None:
    if not stamp or str(stamp).startswith(ZERO_TIME[:4]):
        return None
    return logs.nanoseconds(str(stamp)) / 1e9


def host_config(
    launch: Launch, *, mounts: Sequence[Mapping[str, Any]], log_driver: str
) -> dict[str, Any]:
    """Return limits and isolation. A resource that is not requested is not limited."""
    spec = launch.spec
    config: dict[str, Any] = {
        **privileges(spec),
        "PidsLimit": spec.max_pids,
        "ShmSize": spec.shm_mib * 2**20,
        "ReadonlyRootfs": spec.read_only,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    if log_driver:
        config["LogConfig"] = {"Type": log_driver, "Config": LOG_BOUNDS}
    requested = [
        bind_mount(item.source, item.target, read_only=item.read_only) for item in spec.mounts
    ]
    if mounts or requested:
        config["Mounts"] = [*requested, *mounts]
    if spec.tmpfs:
        # The engine's other defaults apply: noexec, and writable for every user.
        config["Tmpfs"] = {item.path: f"size={item.size_mib}m" for item in spec.tmpfs}
    if cpu_millis := spec.resources.get("cpu_millis"):
        config["NanoCpus"] = max(cpu_millis, MIN_CPU_MILLIS) * 1_000_000
    if memory_mib := spec.resources.get("memory_mib"):
        config["Memory"] = memory_mib * 2**20
        config["MemorySwap"] = memory_mib * 2**20  # memory plus swap: an equal value allows no swap
    return config


def privileges(spec: GroupSpec) -> dict[str, Any]:
    """Return the capabilities and security options of the main process."""
    if spec.privileged:
        return {"Privileged": True}
    more = sorted(
        {name.removeprefix("CAP_") for name in spec.capabilities} - set(USUAL_CAPABILITIES)
    )
    return {
        "CapDrop": ["ALL"],
        "CapAdd": [*USUAL_CAPABILITIES, *more],
        "SecurityOpt": ["no-new-privileges"],
    }


def without_host_paths(spec: GroupSpec, placed: Sequence[PlacedFile]) -> list[PlacedFile]:
    """Return `placed` without files to create, or to make writable, below the task's mounts.

    Those folders belong to the host, and the cell must not change them.
    """
    targets = [item.target.rstrip("/") for item in spec.mounts]

    def is_on_host(item: PlacedFile) -> bool:
        return any(item.path == one or item.path.startswith(f"{one}/") for one in targets)

    return [item for item in placed if item.bound or not is_on_host(item)]


def mounts_for(
    placed: Sequence[PlacedFile], folder: Path, *, read_only: bool
) -> list[dict[str, Any]]:
    """Return bind mounts for bound files, and, in a read-only container, for all of `placed`.

    `folder`: host folder for the sources of writable folders. Unlike a copy, a mount hides the
    content of the image at the same path.
    """
    mounts: list[dict[str, Any]] = []
    for number, item in enumerate(placed):
        source = item.source
        if not item.bound and (not read_only or (source is None and not item.writable)):
            continue
        if source is None:
            source = folder / str(number)
            source.mkdir(parents=True, exist_ok=True)
            source.chmod(0o777)
        mounts.append(bind_mount(str(source.absolute()), item.path, read_only=not item.writable))
    return mounts


def bind_mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return a bind mount of the host's `source`; the engine refuses a missing one."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
