"""Build the examples' image, cellrun/demo:latest, from a static busybox.

No registry is needed: the engine imports a root file system of busybox, from this machine or from
Debian's busybox-static, and links to it.
"""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.engine import Echo, apt_install

REPOSITORY, TAG = "cellrun/demo", "latest"
NAME = f"{REPOSITORY}:{TAG}"
BUSYBOX_PLACES = ("/bin/busybox", "/usr/bin/busybox")
FOLDERS = {"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "work": 0o1777}
# Tasks of the image do not run as root.
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\ntask:x:10001:10001:task:/work:/bin/sh\n",
    "etc/group": "root:x:0:\ntask:x:10001:\n",
}
CHANGES = ["ENV PATH=/bin", "USER 10001:10001", "WORKDIR /work", 'CMD ["sh"]']


def require_image(address: str, echo: Echo) -> None:
    """Ensure that the engine at `address` has the examples' image."""
    try:
        engine = docker.APIClient(base_url=address, version="auto")
    except DockerException as fault:
        raise StackError(f"the container engine at {address} does not respond: {fault}") from None
    try:
        engine.inspect_image(NAME)
        return
    except ImageNotFound:
        echo(f"building the examples' image {NAME} from a static busybox")
    try:
        archive = build_archive(_static_busybox(echo))
        engine.import_image_from_data(archive, repository=REPOSITORY, tag=TAG, changes=CHANGES)
        engine.inspect_image(NAME)
    except APIError as fault:
        raise StackError(f"the engine refused the examples' image: {fault}") from None
    finally:
        engine.close()


def build_archive(busybox: Path) -> bytes:
    """Return a root file system around `busybox` as a tar archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, mode in FOLDERS.items():
            _add(tar, name, mode=mode, kind=tarfile.DIRTYPE)
        for name, text in ACCOUNTS.items():
            _add(tar, name, content=text.encode())
        _add(tar, "bin/busybox", mode=0o755, content=busybox.read_bytes())
        applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
        # The list names busybox itself: a link of that name would replace the program.
        for applet in sorted(set(applets.stdout.split()) - {"busybox"}):
            _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox")
    return archive.getvalue()


def _add(
    tar: tarfile.TarFile,
    name: str,
    *,
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    content: bytes = b"",
    target: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.linkname, entry.size = mode, kind, target, len(content)
    tar.addfile(entry, io.BytesIO(content))


def _static_busybox(echo: Echo) -> Path:
    found = _find_static_busybox()
    if found:
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        echo("installing Debian's busybox-static with apt-get")
        apt_install("busybox-static")
        found = _find_static_busybox()
    if not found:
        raise StackError(
            f"no static busybox to build {NAME} from: install busybox-static,"
            f" or tag any image with sh as {NAME}"
        )
    return found


def _find_static_busybox() -> Path | None:
    places = [shutil.which("busybox") or "", *BUSYBOX_PLACES]
    return next((Path(place) for place in places if place and _is_static(Path(place))), None)


def _is_static(program: Path) -> bool:
    """Return whether an ELF program has no interpreter, the loader of shared libraries."""
    pt_interp = 3
    try:
        head = program.read_bytes()[:4096]
    except OSError:
        return False
    if head[:5] != b"\x7fELF\x02":  # not a program for 64 bits
        return False
    table = int.from_bytes(head[32:40], "little")
    size = int.from_bytes(head[54:56], "little")
    count = int.from_bytes(head[56:58], "little")
    kinds = (head[table + i * size : table + i * size + 4] for i in range(count))
    return all(int.from_bytes(kind, "little") != pt_interp for kind in kinds)
