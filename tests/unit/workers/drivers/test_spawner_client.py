"""A spawner that cannot run is reported with its reason, at once."""

from pathlib import Path

import pytest

from workers.attempt.runtime import EngineAway
from workers.drivers.process.spawner_client import SpawnerLink


def test_a_spawner_that_cannot_run_is_reported_with_the_last_line_of_its_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "spawner" / "lock").mkdir(parents=True)
    with pytest.raises(EngineAway, match="exit code 1: IsADirectoryError"):
        SpawnerLink(tmp_path).connect()


def test_a_spawner_starts_in_an_empty_folder(tmp_path: Path) -> None:
    link = SpawnerLink(tmp_path)
    link.connect()
    assert link.is_connected
    link.close()
