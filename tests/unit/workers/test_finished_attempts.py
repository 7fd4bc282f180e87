"""A cell knows for a day which attempts it has finished, in a few bytes each."""

import tracemalloc
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from tests.unit.workers.test_journal import opened
from workers.finished_attempts import HOUR_SECONDS, MAX_RECENT, FinishedAttempt, FinishedAttempts
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
        ran = draw.choice((1.0, 60.0, 7200.0, draw.uniform(0, DAY)))
        finished = FinishedAttempt(now + DAY - ran, draw.random() < 0.1)
        done.add(uid, finished)
        expected[uid] = finished
    unknown = uids(seed + 1000, 2_000)
    assert all(uid not in done for uid in unknown)
    for share in (0.0, 0.3, 0.7, 1.0):
        first = 1_800_000_000.0
        at = first + share * (now + DAY - first)
        done.forget(at)
        for uid, finished in expected.items():
            found = done.get(uid)
            if finished.until >= at:
                assert found is not None
            if finished.until < at - HOUR_SECONDS:
                assert found is None
            if found is not None:
                assert found.never_created == finished.never_created
    done.forget(now + DAY + 1 + HOUR_SECONDS)
    assert done == FinishedAttempts()


def test_journal_restores_packed_uids(tmp_path: Path) -> None:
    file, journal = opened(tmp_path / "journal")
    names = uids(1, 2_000)
    for number, uid in enumerate(names):
        journal.finish(uid, float(number), never_created=number % 7 == 0)
    file.sync()
    for _ in range(3):
        memory = opened(tmp_path / "journal")[1].memory
        for number, uid in enumerate(names):
            found = memory.done.get(uid)
            assert found is not None
            assert found.never_created == (number % 7 == 0)
            assert 0 <= found.until - (number + KNOWN_SECONDS) <= HOUR_SECONDS
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


def test_attempts_of_any_length_make_few_pages() -> None:
    done, draw, now = FinishedAttempts(), Random(4), 1_800_000_000.0
    for uid in uids(4, 60_000):
        now += 3.0
        done.add(uid, FinishedAttempt(now + DAY - draw.choice((1.0, 1.0, 7200.0, 50_000.0)), False))
        if draw.random() < 0.01:
            done.forget(now)
    assert len(done.pages) <= 27
    assert sum(map(len, done.pages.values())) <= 27 * 8


def test_uid_that_is_finished_again_takes_no_more_space() -> None:
    done, names = FinishedAttempts(), uids(5, 2 * MAX_RECENT)
    for _ in range(100):
        for uid in names:
            done.add(uid, FinishedAttempt(DAY))
    assert sum(len(page) for pages in done.pages.values() for page in pages) <= len(names)


@pytest.mark.parametrize("first", [True, False])
def test_uid_with_both_flags_was_created(first: bool) -> None:
    done = FinishedAttempts()
    for number, flag in enumerate((first, not first)):
        done.add("u", FinishedAttempt(DAY, flag))
        for uid in uids(10 + number, MAX_RECENT):
            done.add(uid, FinishedAttempt(DAY))
    assert "u" not in done.recent
    assert done.get("u") == FinishedAttempt(DAY + HOUR_SECONDS, False)
