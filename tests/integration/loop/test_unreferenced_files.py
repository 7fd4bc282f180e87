"""Files of attempts of which there is no row go when they are a day old, and no others do."""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.test import override_settings

from controlplane import clock
from controlplane.commands.convergence.orphan_files import StoreWalk, sweep_orphan_files
from controlplane.models import Alert, Attempt, Walk
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.queries.convergence.due import find_due
from controlplane.queries.policy import load_policy
from controlplane.storage import folder as store
from controlplane.storage.folder import orphans
from controlplane.storage.interface import AnnouncedFile
from tests.harness.store_limits import reserve_nothing
from tests.integration.loop.conftest import Loop

pytestmark = pytest.mark.usefixtures("loop")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path) -> Iterator[None]:
    """Keep the files of other tests out."""
    with override_settings(CELLRUN=settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})):
        yield


@pytest.fixture
def attempt(loop: Loop) -> Attempt:
    loop.cell()
    job = loop.submit()
    loop.place()
    return loop.attempts(job)[0]


def root() -> Path:
    folder: Path = settings.CELLRUN.artifact_root
    return folder


def leave(uid: UUID, prefix: str) -> None:
    """Output, two artifacts and a draft of an attempt."""
    store.append_log(uid, "stdout", offset=0, content=b"hello")
    for name in ("table", "folder/part"):
        digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        file = AnnouncedFile(uid, prefix, name, 5, digest)
        assert (
            store.put_piece(
                file, offset=0, content=b"hello", most=lambda: 1000, reserve=reserve_nothing
            )
            == 5
        )
    begun = AnnouncedFile(uid, prefix, "begun", 5, "0" * 64)
    assert (
        store.put_piece(begun, offset=0, content=b"he", most=lambda: 1000, reserve=reserve_nothing)
        == 2
    )


def age(*, days: float) -> None:
    """All that is in the store was written so long ago."""
    then = (clock.now() - timedelta(days=days)).timestamp()
    for path in root().rglob("*"):
        os.utime(path, (then, then))


def paths_of(uid: UUID) -> list[Path]:
    return [path for path in root().rglob("*") if str(uid) in path.parts]


def begin_round(reached: str = "") -> None:
    """The round before ended a day ago, or this one is at some place."""
    scanned_at = clock.now() - (HOUR if reached else DAY + HOUR)
    Walk.objects.update_or_create(
        name="orphan_files", defaults={"after": reached, "scanned_at": scanned_at}
    )


def sweep(now: datetime | None = None) -> int:
    done = sweep_orphan_files(StoreWalk(), now=now or clock.now(), is_over=lambda: False)
    assert done.fault is None
    return done.count


def test_unreferenced_files_are_deleted_and_referenced_files_kept(
    loop: Loop, attempt: Attempt
) -> None:
    prefix = find_prefix(attempt.uid)
    assert prefix is not None
    leave(attempt.uid, prefix)
    gone = uuid4()
    leave(gone, f"zz/default/default/1/2/{gone}")
    store.put_input(b"an input that no row names")
    age(days=2)
    before = paths_of(attempt.uid)
    begin_round()
    assert loop.converge()["orphan_files"] == 3
    assert paths_of(gone) == []
    assert not (root() / "artifacts" / "zz").exists()
    assert paths_of(attempt.uid) == before
    assert store.read_log(attempt.uid, "stdout", offset=0, limit=9).content == b"hello"
    assert [path for path in (root() / "inputs").rglob("*") if path.is_file()]
    loop.converge()
    assert not any((root() / "discarded").iterdir())
    assert Walk.objects.get(name="orphan_files").after == ""


def test_files_written_within_a_day_are_kept(attempt: Attempt) -> None:
    gone = uuid4()
    leave(gone, f"zz/default/default/1/2/{gone}")
    age(days=0.9)
    begin_round()
    assert sweep() == 0
    age(days=2)
    # An upload that is under way writes to one file; its folder is as it was.
    for area in ("logs", "drafts", "artifacts"):
        [path] = [path for path in (root() / area).rglob(str(gone)) if path.is_dir()]
        os.utime(next(file for file in path.rglob("*") if file.is_file()))
    begin_round()
    assert sweep() == 0
    assert len(paths_of(gone)) > 6


def test_incomplete_inputs_are_deleted_and_complete_ones_kept() -> None:
    digest = store.put_input(b"whole")
    torn = root() / "inputs" / "ab" / ".tmp12345"
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(b"to")
    age(days=2)
    begin_round()
    assert sweep() == 1
    assert not torn.exists()
    assert store.read_input(digest) == b"whole"


def test_foreign_files_in_the_store_are_kept() -> None:
    uid = uuid4()
    others = [
        "logs/README",
        "logs/ab/notes.txt",
        f"logs/lost+found/{uid}/file",
        f"artifacts/zz/{uid}/file",
        "elsewhere/file",
    ]
    for name in others:
        (root() / name).parent.mkdir(parents=True, exist_ok=True)
        (root() / name).write_text("mine")
    (root() / "logs" / "cd").mkdir()
    (root() / "logs" / "cd" / str(uid)).symlink_to(root() / "elsewhere")
    age(days=2)
    begin_round()
    assert sweep() == 0
    assert all((root() / name).read_text() == "mine" for name in others)


def test_sweep_of_a_new_or_restored_database_waits_a_day(loop: Loop) -> None:
    gone = uuid4()
    leave(gone, f"zz/default/default/1/2/{gone}")
    age(days=9)
    now = clock.now()
    assert sweep(now) == 0
    policy = load_policy()
    assert find_due(now, None, policy, among=["orphan_files"]) == set()
    assert find_due(now + DAY, None, policy, among=["orphan_files"]) == {"orphan_files"}
    for scanned_at in (now - 3 * DAY, now + HOUR):
        Walk.objects.update(scanned_at=scanned_at)
        assert find_due(now, None, policy, among=["orphan_files"]) == {"orphan_files"}
        assert sweep(now) == 0
        assert Walk.objects.get(name="orphan_files").scanned_at == now
    assert sweep(now + DAY) == 3


@pytest.mark.parametrize("is_same_process", [True, False])
def test_sweep_out_of_time_continues_in_the_next_slice(
    monkeypatch: pytest.MonkeyPatch, is_same_process: bool
) -> None:
    monkeypatch.setattr(orphans, "_PART", 1)
    uids = sorted((uuid4() for _ in range(6)), key=lambda uid: uid.hex[-2:])
    for uid in uids:
        store.append_log(uid, "stdout", offset=0, content=b"hello")
    age(days=2)
    begin_round()
    counts, reached, walk = [], [], StoreWalk()
    while not reached or reached[-1]:
        counts.append(sweep_orphan_files(walk, now=clock.now(), is_over=lambda: True).count)
        reached.append(Walk.objects.get(name="orphan_files").after)
        if not is_same_process:
            walk = StoreWalk()
        assert len(counts) < 40
    assert max(counts) == 1
    assert sum(counts) == len(uids)
    assert reached[:-1] == sorted(reached[:-1])


def test_unwritable_store_raises_an_alert_and_is_swept_later(loop: Loop) -> None:
    uids = [uuid4(), uuid4()]
    for uid in uids:
        store.append_log(uid, "stdout", offset=0, content=b"hello")
    age(days=2)
    (root() / "discarded").touch()  # nothing can be put there: the tests run as root, too
    begin_round()
    assert loop.converge().get("orphan_files", 0) == 0
    alerts = Alert.objects.filter(kind="files_not_deleted", cleared_at=None)
    assert "artifact store, what is of no row" in alerts.values_list("subject", flat=True)
    assert all(paths_of(uid) for uid in uids)
    (root() / "discarded").unlink()
    begin_round()
    assert loop.converge()["orphan_files"] == 2
