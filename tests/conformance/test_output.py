"""A task with much output keeps memory and disk bounded, and does not delay the others."""

import os
from pathlib import Path

import pytest

from tests.conformance.kit import DockerKit, Recorder
from workers.attempt.capture import cut_note
from workers.attempt.events import EndedEvent
from workers.config import MAX_LOG_BYTES

pytestmark = pytest.mark.engine

MIB = 2**20
SOME, MANY = 150_000_000, 1_000_000_000
# The engine keeps five files of 20 MiB, all but the last compressed, and may write a sixth.
ENGINE_BYTES = 130 * MIB
CELL_BYTES = 64 * MIB  # of memory, for one stream of any length
# A line of 100 bytes, over and over; and noise that has no lines and is no text.
LINES = f"yes {'0123456789' * 9}012345678 | head -c {{size}}"
ZEROS = "head -c {size} /dev/zero"


def resident_bytes() -> int:
    """The memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def has_ended(events: Recorder, uid: str) -> bool:
    """Return whether its end was reported."""
    return any(isinstance(event, EndedEvent) for event in events.of(uid))


def check_flood(kit: DockerKit, source: str, size: int) -> None:
    """Check that a task that writes `size` bytes stays bounded while others start and end."""
    # Docker keeps 100 MiB of what is not read yet, so the first line is given time to be read.
    script = f"echo first; sleep 1; {source.format(size=size)}; echo end >&2; exit 5"
    flood = kit.launch("sh", "-c", script)
    before = resident_bytes()
    kit.driver.start(flood)
    kit.events.started(flood.uid)
    most = others = 0
    while not has_ended(kit.events, flood.uid):
        other = kit.launch(*kit.exits(3))
        kit.driver.start(other)
        assert kit.events.ended(other.uid).exit_code == 3
        kit.driver.remove(other.uid)
        others += not has_ended(kit.events, flood.uid)
        most = max(most, resident_bytes() - before)
    assert kit.events.ended(flood.uid).exit_code == 5
    print(f"{size} bytes: {most / MIB:.1f} MiB more memory, {others} others ended meanwhile")
    assert others
    assert most < CELL_BYTES
    kept = (kit.home / "logs" / flood.uid / "stdout").read_bytes()
    note = cut_note(MAX_LOG_BYTES)
    assert (len(kept), kept[:6]) == (MAX_LOG_BYTES + len(note), b"first\n")
    assert kept.endswith(note)
    check_engine(kit, flood.uid)


def check_engine(kit: DockerKit, uid: str) -> None:
    """What the engine keeps of the output is bounded too."""
    found = kit.inspect(uid)
    bounds = {"max-size": "20m", "max-file": "5"}
    assert found["HostConfig"]["LogConfig"] == {"Type": "local", "Config": bounds}
    folder = Path(kit.outside.info()["DockerRootDir"], "containers", found["Id"])
    if os.access(folder, os.R_OK):
        assert 0 < folder_bytes(folder) < ENGINE_BYTES


def test_flood_of_output_is_truncated_while_other_tasks_continue(docker_kit: DockerKit) -> None:
    check_flood(docker_kit, ZEROS, SOME)


@pytest.mark.soak
@pytest.mark.parametrize("source", [ZEROS, LINES], ids=["zeros", "lines"])
def test_gigabyte_of_output_is_truncated_while_other_tasks_continue(
    docker_kit: DockerKit, source: str
) -> None:
    check_flood(docker_kit, source, MANY)
