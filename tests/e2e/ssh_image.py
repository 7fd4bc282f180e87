"""An image whose tasks log in to each other: the examples' programs, and Debian's dropbear."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import docker

from controlplane.config.stack.parts.engine import require_engine
from controlplane.config.stack.parts.image import NAME, require_image

REPOSITORY, TAG = "cellrun/test-ssh", "latest"
IMAGE = f"{REPOSITORY}:{TAG}"
PROGRAMS = ("dropbear", "dbclient", "dropbearkey", "dropbearconvert")


def require_ssh_image() -> None:
    """Make the image, once on an engine."""
    address = require_engine(print)
    require_image(address, print)
    engine = docker.APIClient(base_url=address, version="auto")
    try:
        if engine.images(name=IMAGE):
            return
        made = engine.create_container(NAME, ["true"], user="root")
        try:
            engine.put_archive(made["Id"], "/", archive_of(programs()))
            engine.commit(made["Id"], REPOSITORY, TAG)
        finally:
            engine.remove_container(made["Id"], force=True)
    finally:
        engine.close()


def programs() -> list[Path]:
    """Dropbear's programs with all that they load."""
    found = [Path(place).resolve() for name in PROGRAMS if (place := shutil.which(name))]
    assert len(found) == len(PROGRAMS), "dropbear-bin is not installed: make tools"
    done = subprocess.run(["ldd", *found], capture_output=True, text=True, check=True)
    words = {word for line in done.stdout.splitlines() for word in line.split()}
    # A line that ends in a colon names the program itself.
    loaded = {Path(word) for word in words if word.startswith("/") and not word.endswith(":")}
    return [*found, *sorted(loaded)]


def archive_of(files: list[Path]) -> bytes:
    """The files as a tar archive, each where it is here."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for file in files:
            tar.add(file, str(file).lstrip("/"))
    return archive.getvalue()
