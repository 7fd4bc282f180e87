"""A real image registry, Debian's docker-registry, in a process of its own on a free port."""

import contextlib
import io
import os
import socket
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker

from controlplane.config.stack.parts.engine import find_engine
from tests.conformance.kit import IMAGE, until

PROGRAM = "docker-registry"
USER, PASSWORD = "reader", "secret"
# As `htpasswd -nbB` writes it; a cheap one.
HTPASSWD = f"{USER}:$2b$04$eXYMRhhNXlEqc19lqi.26.q/Ll8D830RU7hs9v07.LspFOGajXnR6\n"
CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
CLOSED = "auth: {{htpasswd: {{realm: closed, path: {folder}/htpasswd}}}}\n"


class Distribution:
    """The registry and what was pushed to it."""

    def __init__(self, folder: Path, *, closed: bool) -> None:
        self._folder = folder
        self._closed = closed
        self.port = free_port()
        self._api: Any = docker.APIClient(version="auto")
        self._process: subprocess.Popen[bytes] | None = None
        self._pushed: list[str] = []

    def start(self) -> None:
        """Serve what was pushed so far."""
        config = CONFIG + (CLOSED if self._closed else "")
        path = self._folder / "config.yml"
        path.write_text(config.format(folder=self._folder, port=self.port))
        (self._folder / "htpasswd").write_text(HTPASSWD)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, "serve", path], stdout=log, stderr=log)
        until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def stop(self) -> None:
        """Be down; repeatable."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Down, and the engine knows nothing of it any more."""
        self.stop()
        for name in self._pushed:
            with contextlib.suppress(docker.errors.NotFound):
                self._api.remove_image(name, force=True)
        self._api.close()

    def push(self, noise: int = 0) -> str:
        """An image with the demo's programs, or of `noise` bytes of noise; its name. Not local."""
        name = f"127.0.0.1:{self.port}/conformance/{uuid.uuid4().hex[:8]}:1"
        self._pushed.append(name)
        repository, tag = name.rsplit(":", 1)
        if noise:
            self._api.import_image_from_data(noisy_root(noise), repository=repository, tag=tag)
        else:
            self._api.tag(IMAGE, repository, tag)
        auth = {"username": USER, "password": PASSWORD} if self._closed else None
        for line in self._api.push(repository, tag, stream=True, decode=True, auth_config=auth):
            assert "error" not in line, line
        self._api.remove_image(name)
        return name

    def seen_through(self, port: int, name: str) -> str:
        """The name of the same image at another port of the registry."""
        other = name.replace(f":{self.port}/", f":{port}/", 1)
        self._pushed.append(other)
        return other


@contextlib.contextmanager
def serving(folder: Path, *, closed: bool = False) -> Iterator[Distribution]:
    """Start a registry; `closed`: it requires a password for reads."""
    assert find_engine()
    folder.mkdir()
    made = Distribution(folder, closed=closed)
    try:
        made.start()
        yield made
    finally:
        made.close()


def free_port() -> int:
    """Return a port of the loopback at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def noisy_root(size: int) -> bytes:
    """A root with one file of noise."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        entry = tarfile.TarInfo("noise")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    return content.getvalue()
