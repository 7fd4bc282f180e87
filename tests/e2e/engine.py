"""The container engine's own view, queried and subscribed to from outside Cellrun."""

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

import docker

from workers.drivers.docker.connection import connect

LABEL = "cellrun.installation"


class EngineEvents:
    """Receives every start and end of an installation's containers, from before the block on.

    The engine keeps its latest events: it sends those since the second of the connection even
    if they came before the stream was open, so no start can be missed.
    """

    def __init__(self, installation: str) -> None:
        self._client = connect()
        self._events: list[tuple[str, dict[str, str]]] = []
        self._starts: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._labels: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._stream: Any = self._client.events(
            decode=True,
            since=int(time.time()),
            filters={"type": "container", "label": f"{LABEL}={installation}"},
        )
        self._thread = threading.Thread(target=self._listen, name="engine-events", daemon=True)

    def __enter__(self) -> "EngineEvents":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        self._thread.join(timeout=5)
        self._client.close()

    def _listen(self) -> None:
        for event in self._stream:
            with self._lock:
                self._events.append((event["Action"], event["Actor"]["Attributes"]))
                if event["Action"] in ("start", "die"):
                    container = event["Actor"]["ID"]
                    self._labels[container] = event["Actor"]["Attributes"]
                    if event["Action"] == "start":
                        self._starts[container] += 1
                    else:
                        self._ended.add(container)

    def of_action(self, action: str) -> list[dict[str, str]]:
        """The attributes, labels among them, of every event of that kind so far."""
        with self._lock:
            return [attributes for found, attributes in self._events if found == action]

    def in_order(self) -> list[tuple[str, dict[str, str]]]:
        """Return every event so far and its attributes, in the order of the engine."""
        with self._lock:
            return list(self._events)

    def starts_by_task(self, job_id: int) -> Counter[int]:
        """How often a container was started for each task of a job."""
        return Counter(int(attributes["cellrun.task"]) for attributes in self._started(job_id))

    def attempts_started(self, job_id: int) -> set[str]:
        """The uids of the attempts of a job whose containers were started."""
        return {attributes["cellrun.attempt"] for attributes in self._started(job_id)}

    def _started(self, job_id: int) -> list[dict[str, str]]:
        """The attributes of the container for each start in a job.

        A container that ended has started: under load the engine may drop the event of the start,
        and report the end twice.
        """
        with self._lock:
            return [
                labels
                for container, labels in self._labels.items()
                if labels["cellrun.job"] == str(job_id)
                for _ in range(self._starts[container] or int(container in self._ended))
            ]


def containers_of(installation: str, *, everything: bool = True) -> list[dict[str, Any]]:
    """The installation's containers as the engine lists them; ended ones too with `everything`."""
    client = connect()
    try:
        found: list[dict[str, Any]] = client.containers(
            all=everything, filters={"label": f"{LABEL}={installation}"}
        )
        return found
    finally:
        client.close()


def remove_containers(installation: str) -> None:
    """Delete what a test left on purpose, or by failing."""
    client = connect()
    try:
        for row in client.containers(all=True, filters={"label": f"{LABEL}={installation}"}):
            try:
                client.remove_container(row["Id"], force=True)
            except docker.errors.NotFound:
                continue
    finally:
        client.close()
