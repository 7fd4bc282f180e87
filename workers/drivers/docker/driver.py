"""Containers on Docker Engine, or on Podman's socket, by the Engine API.

The driver uses wait, inspect and logs, so that a restart of the engine or the cell loses nothing.
Only a standard input needs `attach` (workers.attempt.transfer.standard_input).
"""

import posixpath
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

from controlplane.contract.messages.launch_context import Registry
from workers import clock
from workers.attempt.capture import Capture
from workers.attempt.disk import bytes_below
from workers.attempt.events import FoundContainer, Launch
from workers.attempt.outcome import SIGTERMED
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    CreateResult,
    EngineError,
    NoSuchContainer,
    PlacedFile,
    ResourceUsage,
    attempt_labels,
    container_name,
)
from workers.attempt.transfer.tars import Take, rebase
from workers.drivers.docker import archive, events, images, logs, podman
from workers.drivers.docker.cgroups import Cgroups, CgroupSamples
from workers.drivers.docker.checks import RunningChecks
from workers.drivers.docker.connection import (
    CALL_SECONDS,
    EngineTimeout,
    connect,
    translated_errors,
)
from workers.drivers.docker.container import (
    ALIVE,
    GPUS_LABEL,
    container_body,
    mounts_for,
    ports_of,
    use_of,
    view_of,
    without_host_paths,
)
from workers.drivers.docker.gateway import Gateway, is_loopback
from workers.drivers.docker.networks import CellNetworks, network_labels
from workers.drivers.docker.programs import ContainerProgram, end_programs, start_program
from workers.drivers.docker.volumes import volume_bytes
from workers.drivers.gpus import choose_gpus
from workers.exec.program import ExecCommand

FOLLOW_SECONDS = 120.0  # without output, before the stream is reopened, in case it hangs
LOOPBACK = "127.0.0.1"
BINARY_SAFE_LOGS = "local"  # json-file replaces bytes that are not UTF-8


class DockerEngine:
    """An Engine (workers.attempt.runtime) on Docker or Podman."""

    name = "docker"
    needs_image = True
    keeps_logs = True
    feeds_stdin = True

    def __init__(
        self,
        *,
        installation: str,
        cell: str,
        home: Path,
        call_seconds: float = CALL_SECONDS,
        address: Callable[[], str] = lambda: LOOPBACK,
        gpus: int = 0,
    ) -> None:
        """Create the engine client, which connects at the first call: a cell starts without it.

        `address`: the address at which other hosts reach the ports of this host. `gpus`: their
        count; they are numbered from 0.
        """
        self._address = address
        self._gpus = gpus
        self._gpu_lock = threading.Lock()  # held until the container with the GPUs is created
        self._ids: dict[str, str] = {}  # container ids by attempt
        self._checks = RunningChecks()
        self._gateway = Gateway()
        self._networks = CellNetworks(installation=installation, cell=cell)
        self._cgroups = Cgroups(installation=installation, cell=cell)
        self._samples = CgroupSamples()
        self._installation = installation
        self._cell = cell
        self._own_labels = [f"cellrun.installation={installation}", f"cellrun.cell={cell}"]
        self._home = home
        self._call_seconds = call_seconds
        self._lock = threading.Lock()
        self._client: docker.APIClient | None = None
        self._log_driver = ""
        self._is_podman = False

    def find_image(self, image: str) -> str | None:
        """Return the digest of `image` on the engine."""
        try:
            with translated_errors():
                return images.digest_of(self._api.inspect_image(image), image)
        except NoSuchContainer:
            return None

    def pull(
        self, image: str, on_progress: Callable[[int], None], registry: Registry | None = None
    ) -> int:
        """Pull `image`; report the downloaded percentage of the known size."""
        with translated_errors():
            return images.pull(self._api, image, on_progress, registry)

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """Create the container; its name excludes a second one."""
        folders = self._workspace(launch.uid) / "folders"
        files = without_host_paths(launch.spec, placed)
        mounts = mounts_for(files, folders, read_only=launch.spec.read_only)
        # Every label that the driver reads is set, if only to "": else the image's own applies.
        api = self._api
        can_separate = not self._is_podman
        labels = {
            **attempt_labels(launch, installation=self._installation, cell=self._cell),
            **network_labels(launch, can_separate=can_separate),
            GPUS_LABEL: "",
        }
        publish_on = self._publish_on(launch)
        try:
            with (
                self._reserve_gpus(launch) as gpus,
                translated_errors(),
                self._networks.joined(api, launch, can_separate=can_separate) as network,
            ):
                body = container_body(
                    launch,
                    labels=labels,
                    mounts=mounts,
                    log_driver=self._log_driver,
                    publish_on=publish_on,
                    gpus=gpus,
                    network=network,
                    cgroup_parent=self._cgroups.parent(launch.uid),
                )
                if self._is_podman:
                    body = podman.adapt(body)
                answer = api.create_container_from_config(body, container_name(launch.uid))
            self._ids[launch.uid] = str(answer["Id"])
            return CreateResult(str(answer["Id"]), is_new=True)
        except EngineError as error:
            if not podman.is_name_taken(error):
                raise
            view = self.view(launch.uid)
            if view is None:
                raise
            return CreateResult(view.container_id, is_new=False)

    def put(self, launch: Launch, placed: Sequence[PlacedFile]) -> None:
        """Copy files into the container, except mounted ones (in a read-only container: all)."""
        copied = [item for item in without_host_paths(launch.spec, placed) if not item.bound]
        if launch.spec.read_only or not copied:
            return
        self._copy_in(launch.uid, "/", copied)

    def _copy_in(self, uid: str, folder: str, placed: Sequence[PlacedFile]) -> None:
        """Place files and folders, with paths relative to `folder`."""
        name = self._reference(uid)
        inside = archive.ContainerFiles(
            stat=lambda path: self._stat(name, path), header=lambda path: self._header(name, path)
        )
        tar = self._workspace(uid) / "placed.tar"
        if archive.write_tar(tar, placed, inside):
            with translated_errors(), open(tar, "rb") as file:
                self._api.put_archive(name, folder, file)
        tar.unlink(missing_ok=True)

    @contextmanager
    def stdin(self, uid: str) -> Iterator[socket.socket]:
        """Attach to the standard input, which the engine closes at the end of the connection."""
        with translated_errors():
            stream = self._api.attach_socket(self._reference(uid), params={"stdin": 1, "stream": 1})
        connection = getattr(stream, "_sock", stream)
        with closing(stream), closing(connection):
            yield connection

    def start(self, uid: str) -> None:
        """Start the created container."""
        with translated_errors():
            self._api.start(self._reference(uid))
        self._cgroups.sample(uid)

    def view(self, uid: str) -> ContainerView | None:
        """Return the current state of the container."""
        body = self._inspect(uid)
        if body is None:
            return None
        view = view_of(body)
        if view.status is not ContainerStatus.ENDED:
            return view
        return replace(view, use=self._cgroups.use(uid) or self._samples.last(uid))

    def wait(self, uid: str, seconds: float) -> bool:
        """Wait for the end, `seconds` at most; sample its usage if it has no cgroup of its own."""
        if self._cgroups.has(uid):
            return self._wait(uid, seconds)
        while seconds > 0:
            pause = min(self._samples.pause(uid), seconds)
            if self._wait(uid, pause):
                return True
            self._samples.sample(uid, self.view(uid))
            seconds -= pause
        return False

    def _wait(self, uid: str, seconds: float) -> bool:
        try:
            with translated_errors():
                self._api.wait(self._reference(uid), timeout=seconds)
        except EngineTimeout:
            return False
        return True

    def signal(self, uid: str, name: str) -> bool:
        """Send a signal to the main process."""
        try:
            with translated_errors():
                self._api.kill(self._reference(uid), f"SIG{name.removeprefix('SIG')}")
        except NoSuchContainer:
            return False
        except EngineError as error:
            if error.status == 409 or "is not running" in str(error):
                return False
            raise
        return True

    def was_stopped(self, launch: Launch, view: ContainerView) -> bool:
        """Return whether the engine recorded a signal. Raise EngineAway also if it is stopping."""
        name, ended_at = self._reference(launch.uid), view.ended_at or 0.0
        stop_signal = launch.spec.stop_signal
        with translated_errors():
            if events.was_stopped(self._api, name, ended_at, stop_signal):
                return True
            if view.exit_code == SIGTERMED:
                # A stopping engine serves open connections, but accepts no new ones.
                connect(self._call_seconds).close()
        return False

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """Return the host ports that the engine chose."""
        with translated_errors():
            body = self._api.inspect_container(self._reference(launch.uid))
        return ports_of(body, launch.spec.ports)

    def host(self, launch: Launch, address: str) -> str:
        """Return `address`, or the gateway's if a gang's containers cannot reach a loopback one."""
        if not launch.spec.is_gang or not is_loopback(address):
            return address
        with translated_errors():
            return self._gateway.address(self._api) or address

    def use(self, uid: str) -> ResourceUsage:
        """Return one sample of the container's statistics."""
        api = self._api
        with translated_errors():
            url = api._url("/containers/{0}/stats", self._reference(uid))
            found = api._result(api._get(url, params={"stream": 0, "one-shot": 1}), True)
        return use_of(found)

    def disk_bytes(self, uid: str) -> int:
        """Return the size of the container's layer, its writable mounted folders and volumes."""
        api = self._api
        with translated_errors():
            url = api._url("/containers/{0}/json", self._reference(uid))
            found = api._result(api._get(url, params={"size": 1}), True)
            volumes = volume_bytes(api, found.get("Mounts") or ())
        layer = int(found.get("SizeRw") or 0)
        return layer + volumes + bytes_below(self._workspace(uid) / "folders")

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Run a command in the container."""
        with translated_errors():
            return self._checks.run(self._api, self._reference(launch.uid), command, seconds)

    def execute(self, launch: Launch, command: ExecCommand) -> ContainerProgram:
        """Start a program by the exec calls."""
        view = self.view(launch.uid)
        if view is None:
            raise NoSuchContainer("there is no such container")
        return start_program(self._api, view.container_id, command)

    def end_programs(self, uid: str) -> None:
        """Kill the programs of `execute` that have no connection to this process."""
        if (body := self._inspect(uid)) is not None:
            end_programs(self._api, body)

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """Return the head of a regular file; links are not followed."""
        name = self._reference(launch.uid)
        with translated_errors(), closing(self._archive(name, path)) as answer:
            stat = archive.Stat.read(answer.headers.get("x-docker-container-path-stat"))
            return archive.first_file(answer.raw, limit) if stat.is_regular else None

    def save(self, launch: Launch, path: str, target: Path, take: Take) -> bool:
        """Copy out of the container by the archive call, which does not follow a link at `path`."""
        name = self._reference(launch.uid)
        try:
            with translated_errors(), closing(self._archive(name, path)) as answer:
                rebase(answer.raw, target, take)
        except NoSuchContainer:
            return False
        return True

    def write(self, launch: Launch, path: str, source: Path) -> None:
        """Copy into the ended container by the archive call.

        In a read-only container only its mounted folders can be changed.
        """
        found = None
        with suppress(EngineError):  # a file in place of a folder above: the copy reports it
            found = self._stat(self._reference(launch.uid), path)
        if found is not None and found.is_folder:
            raise EngineError(f"{path} is a folder", 400)
        folder, name = posixpath.split(path) if launch.spec.read_only else ("/", path)
        self._copy_in(launch.uid, folder, [PlacedFile(name, source)])

    def restore(self, launch: Launch, path: str, source: Path) -> None:
        """Copy into the created container by the archive call."""
        with translated_errors(), open(source, "rb") as file:
            self._api.put_archive(self._reference(launch.uid), path, file)

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Copy the output that `capture` does not have yet."""
        reader, cursors = capture.begin()
        api = self._api
        with translated_errors():
            answer = api._get(
                api._url("/containers/{0}/logs", self._reference(uid)),
                params={
                    "stdout": 1,
                    "stderr": 1,
                    "timestamps": 1,
                    "follow": int(follow),
                    "since": logs.since(cursors),
                },
                stream=True,
                timeout=FOLLOW_SECONDS if follow else CALL_SECONDS,
            )
            with closing(answer):
                api._raise_for_status(answer)
                joins_lines = self._log_driver == BINARY_SAFE_LOGS
                logs.copy_entries(
                    answer.raw.read1, capture, reader, cursors, joins_lines=joins_lines
                )

    def remove(self, uid: str) -> None:
        """Delete the container with its anonymous volumes."""
        found = self._reference(uid)
        self._checks.forget(found)
        try:
            with translated_errors():
                self._api.remove_container(found, v=True, force=True)
        except NoSuchContainer:
            pass
        self._ids.pop(uid, None)
        self._cgroups.remove(uid)
        self._samples.forget(uid)
        with translated_errors():
            self._networks.leave(self._api, uid)

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers with the labels of this cell."""
        self._cgroups.sweep(clock.wall_seconds())
        grouped = self._cgroups.list()
        with translated_errors():
            self._networks.sweep(self._api)
            rows = self._api.containers(all=True, filters={"label": self._own_labels})
        existing = {(row.get("Labels") or {}).get("cellrun.attempt") for row in rows}
        for orphan in grouped - existing:
            self._cgroups.remove(orphan)
        for row in rows:
            uid = (row.get("Labels") or {}).get("cellrun.attempt")
            if uid:
                self._ids.setdefault(uid, str(row["Id"]))
                yield FoundContainer(uid, str(row.get("State")).lower() in ALIVE, row["Id"])

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _reference(self, uid: str) -> str:
        """Return the container's id if known, else its name, which people may change."""
        return self._ids.get(uid) or container_name(uid)

    def _inspect(self, uid: str) -> dict[str, Any] | None:
        """Return the engine's description: by id, by name, or (renamed) by its label."""
        try:
            with translated_errors():
                body: dict[str, Any] = self._api.inspect_container(self._reference(uid))
        except NoSuchContainer:
            if uid in self._ids or not self._find_by_label(uid):
                return None
            return self._inspect(uid)
        self._ids[uid] = str(body["Id"])
        return body

    def _find_by_label(self, uid: str) -> bool:
        """Return whether a renamed container has the attempt's label; remember its id."""
        labels = [*self._own_labels, f"cellrun.attempt={uid}"]
        with translated_errors():
            rows = self._api.containers(all=True, filters={"label": labels})
        for row in rows:
            self._ids[uid] = str(row["Id"])
        return bool(rows)

    @property
    def _api(self) -> Any:
        """The client, connected at the first use. Raises EngineAway."""
        with self._lock:
            if self._client is None:
                with translated_errors():
                    client = connect(self._call_seconds)
                    try:
                        info, version = client.info(), client.version()
                    except BaseException:
                        client.close()
                        raise
                plugins = (info.get("Plugins") or {}).get("Log") or ()
                self._log_driver = BINARY_SAFE_LOGS if BINARY_SAFE_LOGS in plugins else ""
                self._is_podman = podman.is_podman(version)
                self._cgroups.settle(info)
                self._client = client
            return self._client

    def _publish_on(self, launch: Launch) -> str:
        """Return the address to publish ports on: a local one if the cell's address is loopback."""
        if not launch.spec.ports or not is_loopback(self._address()):
            return ""
        return self.host(launch, self._address())

    @contextmanager
    def _reserve_gpus(self, launch: Launch) -> Iterator[Sequence[int]]:
        """Yield GPUs that no other container of this cell holds; create the container within."""
        count = launch.spec.resources.get("gpu", 0)
        if not count:
            yield ()
            return
        with self._gpu_lock:
            with translated_errors():
                rows = self._api.containers(
                    all=True, filters={"label": [*self._own_labels, GPUS_LABEL]}
                )
            held = [
                row["Labels"][GPUS_LABEL]
                for row in rows
                if row["Labels"][GPUS_LABEL]
                and str(row.get("State")).lower() in (*ALIVE, "created")
            ]
            yield choose_gpus(count, self._gpus, held)

    def _workspace(self, uid: str) -> Path:
        return self._home / "work" / uid

    def _stat(self, name: str, path: str) -> archive.Stat | None:
        api = self._api
        with translated_errors():
            answer = api.head(
                api._url("/containers/{0}/archive", name),
                params={"path": path},
                timeout=CALL_SECONDS,
            )
            if answer.status_code == 404:
                return None
            api._raise_for_status(answer)
        return archive.Stat.read(answer.headers.get("x-docker-container-path-stat"))

    def _header(self, name: str, path: str) -> Any:
        with translated_errors(), closing(self._archive(name, path)) as answer:
            return archive.first_header(answer.raw)

    def _archive(self, name: str, path: str) -> Any:
        api = self._api
        url = api._url("/containers/{0}/archive", name)
        plain = {"Accept-Encoding": "identity"}  # the stream is read in pieces
        answer = api._get(url, params={"path": path}, headers=plain, stream=True)
        try:
            api._raise_for_status(answer)
        except BaseException:
            answer.close()
            raise
        return answer
