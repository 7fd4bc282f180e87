"""An engine of the test's own beside the machine's: to be restarted, killed, and filled up.

It has a network namespace of its own, so that it cannot touch the bridge of the other.
"""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import docker
import pytest
import requests

from tests.conformance.cable import Cable
from tests.conformance.kit import IMAGE, DockerKit, until
from workers.drivers.docker.connection import connect

SHUTDOWN_SECONDS = 1  # between the SIGTERM and the SIGKILL of what it stops when it ends
START_SECONDS = 60.0
API_VERSION = "1.41"


def require_root() -> None:
    """Skip the test unless root runs it: only root may start an engine or mount a disk."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it starts an engine or mounts a disk of its own")


class OwnEngine:
    """A dockerd with its own folder, short, for a socket's path is a short one."""

    def __init__(self, folder: Path, *, live_restore: bool = False) -> None:
        require_root()
        self.folder = folder
        self._live_restore = live_restore
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix://{folder}/socket"
        # The cell's way to the engine: it closes a connection while no engine listens.
        self._line = Cable(f"{folder}/line", f"{folder}/socket")
        self.line = f"unix://{folder}/line"

    def start(self) -> None:
        """Run, with what was there before."""
        # A killed one leaves its pid files, and those of zombies are taken for the living.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)
        command = [
            *("unshare", "--net", "dockerd", f"--host={self.address}"),
            *(f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"),
            *(f"--pidfile={self.folder}/pid", "--bridge=none", "--iptables=false"),
            *("--ip6tables=false", f"--shutdown-timeout={SHUTDOWN_SECONDS}"),
            *(("--live-restore",) if self._live_restore else ()),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until(self._answers, START_SECONDS)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.folder / "socket")):
                return False
        client = docker.APIClient(base_url=self.address, version=API_VERSION)
        try:
            return bool(client.ping())
        except (docker.errors.DockerException, requests.RequestException):
            return False
        finally:
            client.close()

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal and return when it has gone. Repeatable."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_SECONDS)
            self._process = None

    def load_image(self) -> None:
        """The demo's image, from the machine's engine."""
        source = docker.APIClient(version="auto")
        target = docker.APIClient(base_url=self.address, version="auto")
        try:
            target.load_image(b"".join(source.get_image(IMAGE)))
        finally:
            source.close()
            target.close()

    def close(self) -> None:
        """Gone, with all that it had."""
        self.end()
        self._line.close()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            path = line.split()[1]
            if path.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", path], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


class OwnEngineKit(DockerKit):
    """A kit whose outsiders are at the engine that DOCKER_HOST names."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.outside.close()
        self.outside = connect()
