"""One private network for each gang on a cell, which exists while any container of the gang does.

The engine accepts two networks of the same name, and removes a network that created containers
still need. So networks are found by labels, and creation, joining and removal are serialized.
"""

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
MAX_HOST_NAME = 63  # bytes, Linux' limit
# Cells that share an engine may choose the same subnet at the same moment.
_SUBNETS_TRIED = 10


class GangNetworks:
    """The networks of one cell's gangs, by job."""

    def __init__(self, *, installation: str, cell: str) -> None:
        self._installation = installation
        self._cell = cell
        self._lock = threading.Lock()
        self._members: dict[str, str] = {}  # known members: job by uid

    @contextmanager
    def joined(self, api: Any, launch: Launch) -> Iterator[dict[str, Any] | None]:
        """Yield the parts of a container's body that join its gang; create it within the block.

        None: the task requests no such network.
        """
        if launch.spec.network != "gang":
            yield None
            return
        job = str(launch.spec.job_id)
        with self._lock:
            self._members[launch.uid] = job
            yield network_parts(self._find_or_create(api, job), member_name(launch))

    def leave(self, api: Any, uid: str) -> None:
        """Forget a removed container, and remove the network with its last member."""
        with self._lock:
            job = self._members.pop(uid, None)
            is_last = job is not None and job not in self._members.values()
        if is_last:
            self.sweep(api, str(job))

    def sweep(self, api: Any, job: str = "") -> None:
        """Remove the networks of gangs without containers: of `job`, or all."""
        with self._lock:
            found = self._list(api, job)
            if not found:
                return
            used = set(
                self._note_members(api.containers(all=True, filters={"label": self._labels()}))
            )
            for network in found:
                if network["Labels"][GANG_LABEL] not in used:
                    self._remove(api, network["Id"])

    def _note_members(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the jobs whose gangs have containers, and remember the members."""
        for row in rows:
            labels = row.get("Labels") or {}
            if labels.get(GANG_LABEL):  # empty: the container is in no gang
                self._members[labels.get("cellrun.attempt", "")] = labels[GANG_LABEL]
                yield labels[GANG_LABEL]

    def _find_or_create(self, api: Any, job: str) -> str:
        found = self._list(api, job)
        if found:
            # A cell that died meanwhile may have left several; all members use the same one.
            return str(min(found, key=lambda one: (one.get("Created") or "", one["Id"]))["Id"])
        try:
            return self._create(api, job)
        except APIError as error:
            if not is_exhausted(error):
                raise
        for subnet in islice(free_subnets(api.networks()), _SUBNETS_TRIED):
            try:
                return self._create(api, job, ipam=ipam_of(subnet))
            except APIError as error:
                if not is_taken(error):
                    raise
        raise DockerException(f"no subnet of {RANGE} is free for the network of a gang")

    def _create(self, api: Any, job: str, **options: Any) -> str:
        labels = {
            "cellrun.installation": self._installation,
            "cellrun.cell": self._cell,
            "cellrun.job": job,
            GANG_LABEL: job,
        }
        name = f"cellrun-{self._installation}-{self._cell}-gang-{job}"
        return str(api.create_network(name, driver="bridge", labels=labels, **options)["Id"])

    def _list(self, api: Any, job: str) -> list[dict[str, Any]]:
        gang = f"{GANG_LABEL}={job}" if job else GANG_LABEL
        return list(api.networks(filters={"label": [*self._labels(), gang]}))

    def _labels(self) -> list[str]:
        return [f"cellrun.installation={self._installation}", f"cellrun.cell={self._cell}"]

    def _remove(self, api: Any, network_id: str) -> None:
        try:
            api.remove_network(network_id)
        except Exception as error:  # the next call tries again
            log.warning("network_not_removed", network=network_id, error=str(error))


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
