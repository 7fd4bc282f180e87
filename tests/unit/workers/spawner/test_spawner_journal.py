"""What a killed spawner has written is read by the next one, up to a line that was cut short."""

from pathlib import Path

import pytest

from workers import clock
from workers.spawner.journal import SpawnerJournal
from workers.spawner.task import SpawnedTask


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpawnerJournal:
    monkeypatch.chdir(tmp_path)
    journal = SpawnerJournal()
    journal.rewrite({})
    return journal


def ended(uid: str, code: int) -> SpawnedTask:
    task = SpawnedTask(uid)
    task.pid, task.mark, task.began_at = 7, 70, 1.5
    task.is_over, task.code, task.ended_at = True, code, 2.5
    return task


def test_unforgotten_tasks_are_read_back(journal: SpawnerJournal) -> None:
    for uid in ("a", "b", "c"):
        journal.add("claim", uid)
    journal.add("fact", ended("a", 3).facts())
    journal.add("fact", ended("b", 0).facts())
    journal.add("forget", "b")
    boot, tasks = SpawnerJournal().read()
    assert boot == clock.boot_id()
    assert tasks["a"].facts() == ended("a", 3).facts()
    assert (tasks["c"].pid, tasks["c"].is_over) == (0, False)
    assert list(tasks) == ["a", "c"]


def test_truncated_line_does_not_spoil_later_lines(journal: SpawnerJournal) -> None:
    journal.add("claim", "a")
    with open("journal", "ab") as file:
        file.write(b'\n["fact", ["a", 7')
    journal.add("fact", ended("a", 9).facts())
    _, tasks = SpawnerJournal().read()
    assert tasks["a"].code == 9


def test_rewritten_journal_is_read_back(journal: SpawnerJournal) -> None:
    journal.rewrite({"a": ended("a", 5), "b": SpawnedTask("b")})
    _, tasks = SpawnerJournal().read()
    assert (tasks["a"].code, tasks["b"].is_over) == (5, False)
