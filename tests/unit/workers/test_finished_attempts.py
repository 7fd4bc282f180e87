"""A cell knows for a day which attempts it has finished, in a few bytes each."""

import tracemalloc
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from tests.unit.workers.test_journal import opened
from workers.finished_attempts import PAGE_SECONDS, FinishedAttempt, FinishedAttempts
from workers.journal import KNOWN_SECONDS

DAY = 24 * 3600.0


def uids(seed: int, count: int) -> list[str]:
    draw = Random(seed)
    return [str(UUID(int=draw.getrandbits(128), version=4)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8300, 8304))
def test_uid_is_known_until_its_time_and_not_much_longer(seed: int) -> None:
    print(f"seed {seed}")
    draw, done = Random(seed), FinishedAttempts()
    expected: dict[str, FinishedAttempt] = {}
    now = 1_800_000_000.0
    for uid in uids(seed, 6_000):
        now += draw.choice((0.0, 1.0, 60.0))
        finished = FinishedAttempt(now + DAY + draw.uniform(-60, 60), draw.random() < 0.1)
        done.add(uid, finished)
        expected[uid] = finished
    unknown = uids(seed + 1000, 2_000)
    assert all(uid not in done for uid in unknown)
    for share in (0.0, 0.3, 0.7, 1.0):
        first = 1_800_000_000.0 + DAY
        at = first + share * (now - 1_800_000_000.0) + 60
        done.forget(at)
        for uid, finished in expected.items():
            found = done.get(uid)
            if finished.until >= at:
                assert found is not None
            if finished.until < at - PAGE_SECONDS:
                assert found is None
            if found is not None:
                assert found.never_created == finished.never_created
    done.forget(now + DAY + 61 + PAGE_SECONDS)
    assert len(done) == 0


def test_journal_restores_packed_uids(tmp_path: Path) -> None:
    file, journal = opened(tmp_path / "journal")
    names = uids(1, 2_000)
    for number, uid in enumerate(names):
        journal.finish(uid, float(number), never_created=number % 7 == 0)
    file.sync()
    for _ in range(2):
        memory = opened(tmp_path / "journal")[1].memory
        assert memory.done == journal.memory.done
        for number, uid in enumerate(names):
            found = memory.done.get(uid)
            assert found is not None
            assert found.never_created == (number % 7 == 0)
            assert 0 <= found.until - (number + KNOWN_SECONDS) <= PAGE_SECONDS
        file.compact()


def test_journal_takes_few_bytes_for_each_uid_after_compaction(tmp_path: Path) -> None:
    file, journal = opened(tmp_path / "journal")
    for uid in uids(2, 20_000):
        journal.finish(uid, 1.0)
    file.sync()
    file.compact()
    content = (tmp_path / "journal").read_bytes().rstrip(b"\0")
    assert len(content) / 20_000 < 16


def test_uid_takes_few_bytes_of_memory() -> None:
    done = FinishedAttempts()
    names = uids(3, 50_000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, uid in enumerate(names):
            done.add(uid, FinishedAttempt(DAY + number / 100))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 50_000 < 16
    assert len(done.pages) < 20
