"""The networks of a cell: one for each gang, and one for all other tasks.

A network exists while any of its containers does. Members of a gang reach each other. In the
network of the other tasks the engine drops connections between containers, so tasks of two jobs
cannot reach each other; a network for each job would cost 0.25 s per start (measured).

The engine accepts two networks of the same name, and removes a network that created containers
still need. So networks are found by labels, and creation, joining and removal are serialized.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import structlog
from docker.errors import APIError, DockerException

from workers.attempt.events import Launch
from workers.drivers.docker.subnets import RANGE, free_subnets, ipam_of, is_exhausted, is_taken

log = structlog.get_logger(__name__)

GANG_LABEL = "cellrun.gang"
NETWORK_LABEL = "cellrun.network"
TASKS = "tasks"
MAX_HOST_NAME = 63  # bytes, Linux' limit
# Cells that share an engine may choose the same subnet at the same moment.
_SUBNETS_TRIED = 10


_BRIDGE_NAME = "com.docker.network.bridge.name"
_NO_CONNECTIONS = {"com.docker.network.bridge.enable_icc": "false"}


class CellNetworks:
    """The networks of one cell, by the job of their gang, or TASKS."""

    def __init__(self, *, installation: str, cell: str) -> None:
        self._installation = installation
        self._cell = cell
        self._lock = threading.Lock()
        self._members: dict[str, str] = {}  # known members: network by uid
        self._creating = 0  # containers of TASKS that the engine may not list yet

    @property
    def bridge_name(self) -> str:
        """Return the interface of TASKS, which is the same after each creation, for firewalls."""
        owner = f"{self._installation}/{self._cell}"
        return f"cr-{hashlib.sha256(owner.encode()).hexdigest()[:12]}"

    @contextmanager
    def joined(
        self, api: Any, launch: Launch, *, can_separate: bool = True
    ) -> Iterator[dict[str, Any] | None]:
        """Yield the parts of a container's body that join its network; create it within the block.

        None: the task has no network, or that of the engine if the engine cannot separate the
        containers of one network (`can_separate`).
        """
        if launch.spec.network == "gang":
            job = str(launch.spec.job_id)
            with self._lock:
                self._members[launch.uid] = job
                yield network_parts(self._find_or_create(api, job), member_name(launch))
        elif launch.spec.network == "default" and can_separate:
            with self._lock:
                self._members[launch.uid] = TASKS
                network_id = self._find_or_create(api, TASKS)
                self._creating += 1
            try:
                # Without the lock: containers of different tasks are created concurrently.
                yield {"HostConfig": {"NetworkMode": network_id}}
            finally:
                with self._lock:
                    self._creating -= 1
        else:
            yield None

    def leave(self, api: Any, uid: str) -> None:
        """Forget a removed container, and remove the network with its last member."""
        with self._lock:
            network = self._members.pop(uid, None)
            is_last = network is not None and network not in self._members.values()
        if is_last:
            self.sweep(api, str(network))

    def sweep(self, api: Any, network: str = "") -> None:
        """Remove networks without containers: that of a job or TASKS, or all."""
        with self._lock:
            found = self._list(api, network)
            if not found:
                return
            used = set(
                self._note_members(api.containers(all=True, filters={"label": self._labels()}))
            )
            if self._creating:
                used.add(TASKS)
            for one in found:
                if _network_of(one["Labels"]) not in used:
                    self._remove(api, one["Id"])

    def _note_members(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the networks that have containers, and remember the members."""
        for row in rows:
            labels = row.get("Labels") or {}
            if network := _network_of(labels):
                self._members[labels.get("cellrun.attempt", "")] = network
                yield network

    def _find_or_create(self, api: Any, network: str) -> str:
        found = self._list(api, network)
        if found:
            # A cell that died meanwhile may have left several; all members use the same one.
            return str(min(found, key=lambda one: (one.get("Created") or "", one["Id"]))["Id"])
        try:
            return self._create(api, network)
        except APIError as error:
            if not is_exhausted(error):
                raise
        for subnet in islice(free_subnets(api.networks()), _SUBNETS_TRIED):
            try:
                return self._create(api, network, ipam=ipam_of(subnet))
            except APIError as error:
                if not is_taken(error):
                    raise
        raise DockerException(f"no subnet of {RANGE} is free for a network")

    def _create(self, api: Any, network: str, **options: Any) -> str:
        labels = {"cellrun.installation": self._installation, "cellrun.cell": self._cell}
        if network == TASKS:
            labels[NETWORK_LABEL] = TASKS
            options["options"] = {**_NO_CONNECTIONS, _BRIDGE_NAME: self.bridge_name}
            name = TASKS
        else:
            labels |= {"cellrun.job": network, GANG_LABEL: network}
            name = f"gang-{network}"
        full_name = f"cellrun-{self._installation}-{self._cell}-{name}"
        return str(api.create_network(full_name, driver="bridge", labels=labels, **options)["Id"])

    def _list(self, api: Any, network: str) -> list[dict[str, Any]]:
        rows = api.networks(filters={"label": self._labels()})
        named = ((_network_of(row.get("Labels") or {}), row) for row in rows)
        return [row for name, row in named if name and network in ("", name)]

    def _labels(self) -> list[str]:
        return [f"cellrun.installation={self._installation}", f"cellrun.cell={self._cell}"]

    def _remove(self, api: Any, network_id: str) -> None:
        try:
            api.remove_network(network_id)
        except Exception as error:  # the next call tries again
            log.warning("network_not_removed", network=network_id, error=str(error))


def network_labels(launch: Launch, *, can_separate: bool) -> dict[str, str]:
    """Return the labels of a container that name its network; empty ones mask an image's own."""
    network = launch.spec.network
    return {
        GANG_LABEL: str(launch.spec.job_id) if network == "gang" else "",
        NETWORK_LABEL: TASKS if network == "default" and can_separate else "",
    }


def _network_of(labels: Mapping[str, str]) -> str:
    return labels.get(GANG_LABEL) or labels.get(NETWORK_LABEL) or ""


def member_name(launch: Launch) -> str:
    """Return the host name of a member within its gang."""
    return f"{launch.spec.group}-{launch.run.task_index}"


def network_parts(network_id: str, name: str) -> dict[str, Any]:
    """Return the parts of a container's body that put it into the network as `name`."""
    parts: dict[str, Any] = {
        "NetworkingConfig": {"EndpointsConfig": {network_id: {"Aliases": [name]}}},
        "HostConfig": {"NetworkMode": network_id},
    }
    if len(name) <= MAX_HOST_NAME:
        parts["Hostname"] = name
    return parts
