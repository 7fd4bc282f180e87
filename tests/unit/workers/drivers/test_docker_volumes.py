"""What counts of an image's volumes where the cell cannot read all of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from workers.drivers.docker.volumes import volume_bytes

MIB = 1 << 20


class Engine:
    """An engine that sizes its volumes, and counts the requests."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes, self.requests = sizes, 0

    def df(self) -> dict[str, Any]:
        self.requests += 1
        volumes = [{"Name": n, "UsageData": {"Size": size}} for n, size in self.sizes.items()]
        return {"Volumes": [*volumes, {"Name": "other", "UsageData": {"Size": 99 * MIB}}]}


def test_the_cell_sizes_a_volume_that_it_can_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    engine = Engine({"v": 5 * MIB})
    mounts = [{"Type": "volume", "Name": "v", "Source": str(tmp_path)}]
    assert (volume_bytes(engine, mounts), engine.requests) == (1000, 0)


def test_the_engine_sizes_a_volume_with_a_folder_that_the_cell_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that closes a folder to others hides no byte, whatever user the cell runs as."""
    (tmp_path / "file").write_bytes(b"x" * 1000)
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    engine = Engine({"v": 5 * MIB})
    mounts = [{"Type": "volume", "Name": "v", "Source": str(tmp_path)}]
    assert (volume_bytes(engine, mounts), engine.requests) == (5 * MIB, 1)


def test_folder_removed_during_sizing_does_not_involve_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def vanish(path: str) -> Any:
        if Path(path).name == "gone":
            raise FileNotFoundError(2, "No such file or directory", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanish)
    engine = Engine({"v": 5 * MIB})
    mounts = [{"Type": "volume", "Name": "v", "Source": str(tmp_path)}]
    assert (volume_bytes(engine, mounts), engine.requests) == (0, 0)
