"""The bytes that count for a project are those that the store has for it, whatever happened."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from controlplane import clock
from controlplane.commands.attempts.artifacts import announce_artifact, put_artifact
from controlplane.commands.attempts.logs import append_output
from controlplane.commands.retention import purge
from controlplane.commands.retention.cache import remove_evicted
from controlplane.commands.tenancy import stored_bytes, stored_totals
from controlplane.commands.tenancy.stored_bytes import count_sizes, record_artifacts
from controlplane.contract.states import TaskState
from controlplane.models import (
    Alert,
    Attempt,
    AuditLine,
    CacheEntry,
    Job,
    Project,
    StoredSize,
    StoredTotal,
    Task,
    TaskGroup,
    Walk,
)
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import execute
from controlplane.queries.tenancy.stored_bytes import count_stored_bytes
from tests.integration.loop.conftest import FakeCell, Loop

STREAMS = ("stdout", "stderr")


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path) -> Iterator[None]:
    """Keep the files of other tests out."""
    with override_settings(CELLRUN=settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})):
        yield


@pytest.fixture
def cell(loop: Loop, many_slots: None) -> FakeCell:
    return loop.cell(cpu=100_000, memory=1_000_000)


def started(loop: Loop, **body: object) -> Attempt:
    job = loop.submit(**body)
    loop.place()
    return loop.attempts(job)[0]


def store_artifact(attempt: Attempt, name: str, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    put_artifact(
        uid=attempt.uid, name=name, size=len(content), sha256=sha256, offset=0, content=content
    )


def delete(attempt: Attempt) -> None:
    """End and hide the job of an attempt: the next purge deletes it."""
    now = clock.now()
    ended = {"state": TaskState.SUCCEEDED, "finished_at": now}
    Attempt.objects.filter(job=attempt.job_id).update(released_at=now, **ended)
    Task.objects.filter(job=attempt.job_id).update(attempt_open=False, **ended)
    Job.objects.filter(pk=attempt.job_id).update(settled_at=now, deleted_at=now, **ended)


def cache(attempt: Attempt, size: int) -> CacheEntry:
    """Give the artifacts of an attempt to an entry of the cache, which is evicted later."""
    prefix, job = find_prefix(attempt.uid), Job.objects.get(pk=attempt.job_id)
    assert prefix is not None
    return CacheEntry.objects.create(
        identity=uuid4(),
        domain_id=job.project.domain_id,
        project_id=job.project_id,
        key="key",
        job_id=job.pk,
        task_id=attempt.task_id,
        attempt_uid=attempt.uid,
        prefix=prefix,
        size_bytes=size,
        created_at=clock.now(),
        used_at=clock.now(),
    )


def used() -> int:
    project = Project.objects.get()
    return count_stored_bytes([project.pk])[project.pk]


def counted() -> int:
    """What convergence has counted, while nothing is left to count."""
    assert not StoredSize.objects.filter(is_uncounted=True).exists()
    return sum(StoredTotal.objects.values_list("total_bytes", flat=True))


def on_disk() -> int:
    """The bytes of the files of attempts in the store."""
    root: Path = settings.CELLRUN.artifact_root
    found = [path for part in ("logs", "artifacts") for path in (root / part).rglob("*")]
    return sum(path.stat().st_size for path in found if path.is_file())


def test_tick_counts_changes_once_and_the_usage_stays_the_same(loop: Loop, cell: FakeCell) -> None:
    attempt = started(loop, inputs=[{"path": "/in", "content": "123"}])
    append_output(uid=attempt.uid, stream="stdout", offset=0, content=b"12345")
    store_artifact(attempt, "a", b"1234567")
    assert (used(), StoredTotal.objects.count()) == (15, 0)
    assert loop.converge()["sizes_counted"] == 2
    assert (used(), counted()) == (15, 15)
    assert "sizes_counted" not in loop.converge()
    append_output(uid=attempt.uid, stream="stdout", offset=5, content=b"6")
    assert used() == 16
    assert loop.converge()["sizes_counted"] == 1
    assert counted() == 16


@pytest.mark.parametrize(
    "corruption",
    [
        "UPDATE controlplane_storedtotal SET total_bytes = 9",
        "DELETE FROM controlplane_storedtotal",
    ],
    ids=["a wrong total", "no total"],
)
def test_wrong_total_is_repaired_within_half_an_hour_with_an_alert(
    loop: Loop, cell: FakeCell, corruption: str
) -> None:
    attempt = started(loop)
    store_artifact(attempt, "a", b"1234567")
    loop.converge()
    execute(corruption)
    store_artifact(attempt, "b", b"89")  # counted by the same tick
    assert "totals_repaired" not in loop.converge()  # the last check is some seconds old
    assert check_all() != []
    Walk.objects.update(scanned_at=clock.now() - timedelta(hours=1))
    assert loop.converge()["totals_repaired"] == 1
    assert (used(), counted(), check_all()) == (9, 9, [])
    found = Alert.objects.filter(kind="repaired", cleared_at=None)
    assert list(found.values_list("subject", flat=True)) == ["rule stored_totals"]
    Walk.objects.update(scanned_at=clock.now() - timedelta(hours=1))
    assert "totals_repaired" not in loop.converge()
    assert not found.exists()


def test_wrong_totals_are_repaired_page_by_page(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_totals, "PAGE", 2)
    domain = Project.objects.get().domain
    for name in ("a", "b", "c"):
        project = Project.objects.create(domain=domain, name=name)
        StoredTotal.objects.create(project=project, total_bytes=5)
    left = []
    for _ in range(2):
        stored_totals.recount_totals(repair=True, now=clock.now())
        left.append(StoredTotal.objects.exclude(total_bytes=0).count())
    assert left == [1, 0]


def test_command_lists_and_repairs_a_wrong_total(
    loop: Loop, cell: FakeCell, capsys: pytest.CaptureFixture[str]
) -> None:
    store_artifact(started(loop), "a", b"123")
    loop.converge()
    StoredTotal.objects.update(total_bytes=1)
    line = f"INV-70 project {Project.objects.get().pk}: the total is 1 bytes, counted are 3"
    with pytest.raises(SystemExit):
        call_command("recount")
    assert line in capsys.readouterr().out
    assert counted() == 1
    call_command("recount", repair=True)
    assert f"{line} (repaired)" in capsys.readouterr().out
    assert counted() == 3
    assert AuditLine.objects.get(action="repair.project").project == Project.objects.get()


def test_command_lists_and_repairs_more_wrong_totals_than_a_page_has(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stored_totals, "PAGE", 2)
    domain = Project.objects.get().domain
    for number in range(5):
        project = Project.objects.create(domain=domain, name=f"p{number}")
        StoredTotal.objects.create(project=project, total_bytes=5)
    with pytest.raises(SystemExit):
        call_command("recount")
    listed = capsys.readouterr()
    assert listed.out.count("the total is 5 bytes, counted are 0") == 5
    assert "5 differences, 0 repaired (0 jobs checked)" in listed.err
    call_command("recount", repair=True)
    assert capsys.readouterr().out.count("(repaired)") == 5
    assert not StoredTotal.objects.exclude(total_bytes=0).exists()


def test_deleted_job_frees_what_was_counted_and_what_was_not(loop: Loop, cell: FakeCell) -> None:
    first, second = started(loop, name="a"), started(loop, name="b")
    store_artifact(first, "a", b"123")
    loop.converge()
    store_artifact(first, "b", b"4")
    store_artifact(second, "a", b"12")
    delete(first)
    loop.converge()
    assert (used(), counted(), on_disk()) == (2, 2, 2)
    delete(second)
    purge.purge_deleted(never)
    assert used() == 0
    loop.converge()
    assert (counted(), StoredSize.objects.count()) == (0, 0)


def test_artifacts_of_a_cache_entry_count_as_long_as_the_entry(loop: Loop, cell: FakeCell) -> None:
    attempt = started(loop)
    append_output(uid=attempt.uid, stream="stdout", offset=0, content=b"12345")
    store_artifact(attempt, "a", b"123")
    entry = cache(attempt, 3)
    delete(attempt)
    purge.purge_deleted(never)
    assert (used(), on_disk()) == (3, 3)
    loop.converge()
    assert counted() == 3
    CacheEntry.objects.filter(pk=entry.pk).update(evicted_at=clock.now())
    assert remove_evicted(never) == (1, None)
    assert (used(), on_disk()) == (0, 0)


def test_upload_during_the_deletion_of_its_job_counts_nothing(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = started(loop)

    def deleted_before(record: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            found = record(*arguments)
            delete(attempt)
            return found

        return run

    monkeypatch.setattr(
        "controlplane.commands.attempts.artifacts.record_artifacts",
        deleted_before(record_artifacts),
    )
    with pytest.raises(Exception, match="has been deleted"):
        store_artifact(attempt, "a", b"123")
    assert used() == 0


def test_sizes_without_a_job_are_subtracted_with_an_alert(loop: Loop, cell: FakeCell) -> None:
    attempt, kept, cached = (started(loop, name=name) for name in ("a", "b", "c"))
    for item in (attempt, kept, cached):
        store_artifact(item, "a", b"123")
    cache(cached, 3)
    loop.converge()
    for lost in (attempt, cached):
        for model in (Attempt, Task, TaskGroup):
            model._default_manager.filter(job=lost.job_id).delete()
        Job.objects.filter(pk=lost.job_id)._raw_delete("default")
    Walk.objects.all().delete()
    assert loop.converge()["orphans"] > 0
    assert Alert.objects.filter(cleared_at=None, text__contains="orphans").exists()
    loop.converge()
    assert (used(), counted()) == (6, 6)


def test_counting_skips_what_an_upload_holds_and_loses_nothing(loop: Loop, cell: FakeCell) -> None:
    first, second = started(loop, name="a"), started(loop, name="b")
    store_artifact(first, "a", b"123")
    store_artifact(second, "a", b"12345")

    def count() -> int:
        try:
            return count_sizes(never)["sizes_counted"]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            record_artifacts(first.uid, 4)
            assert thread.submit(count).result(timeout=60) == 1
        assert used() == 4 + 5
        assert thread.submit(count).result(timeout=60) == 1
    assert counted() == 9


def test_concurrent_uploads_and_counts_add_up(loop: Loop, cell: FakeCell) -> None:
    attempts = [started(loop, name=f"job-{number}") for number in range(4)]

    def upload(attempt: Attempt) -> None:
        try:
            for number in range(25):
                store_artifact(attempt, f"f{number}", b"1234")
                append_output(uid=attempt.uid, stream="stderr", offset=number, content=b"x")
        finally:
            connections.close_all()

    def count() -> None:
        try:
            for _ in range(40):
                count_sizes(never)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        done = [threads.submit(upload, attempt) for attempt in attempts]
        done += [threads.submit(count) for _ in range(2)]
        for item in done:
            item.result(timeout=120)
    count_sizes(never)
    assert used() == counted() == on_disk() == 4 * 25 * 5


# ------------------------------------------------------------------------------ drawn


@dataclass
class Stored:
    """What a job has stored, restated plainly."""

    attempt: Attempt
    inputs: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    artifacts: dict[str, int] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)

    def size(self) -> int:
        files = {**self.artifacts, **self.announced}
        return self.inputs + sum(self.streams.values()) + sum(files.values())


places, sizes = st.integers(0, 5), st.integers(0, 40)
steps = st.one_of(
    st.tuples(st.just("submit"), sizes),
    st.tuples(st.just("print"), places, st.sampled_from(STREAMS), sizes),
    st.tuples(st.just("store"), places, st.sampled_from(["a", "b", "c/d"]), sizes),
    st.tuples(st.just("announce"), places, st.sampled_from(["e", "f"]), sizes),
    st.tuples(st.just("delete"), places),
    st.tuples(st.just("purge")),
    st.tuples(st.just("count")),
)


def forget_all() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE controlplane_storedsize, controlplane_storedtotal, controlplane_attempt,"
            " controlplane_task, controlplane_taskgroup, controlplane_job CASCADE"
        )


@examples(
    max_examples=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=st.lists(steps, min_size=5, max_size=25))
def test_usage_equals_a_plain_recount(loop: Loop, cell: FakeCell, drawn: list[tuple]) -> None:  # type: ignore[type-arg]
    forget_all()
    jobs = [Stored(started(loop))]
    hidden: list[Stored] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purge, "PAGE", 2)
        patch.setattr(stored_bytes, "PAGE", 2)
        for step, *values in drawn:
            target = jobs[values[0] % len(jobs)] if jobs and values else None
            if step == "submit":
                size = values[0]
                inputs = [{"path": "/in", "content": "x" * size}]
                jobs.append(Stored(started(loop, name="n", inputs=inputs), inputs=size))
            elif step == "purge":
                purge.purge_deleted(never)
                hidden.clear()
            elif step == "count":
                count_sizes(never)
            elif target is not None:
                if step == "delete":
                    delete(target.attempt)
                    jobs.remove(target)
                    hidden.append(target)
                else:
                    _store(target, step, *values[1:])
            assert used() == sum(item.size() for item in jobs + hidden)
        count_sizes(never)
        assert used() == counted() == sum(item.size() for item in jobs + hidden)
        for item in jobs:
            delete(item.attempt)
        purge.purge_deleted(never)
        count_sizes(never)
        assert (used(), counted(), on_disk(), StoredSize.objects.count()) == (0, 0, 0, 0)


def _store(target: Stored, step: str, name: str, size: int) -> None:
    uid, content = target.attempt.uid, b"x" * size
    if step == "print":
        here = target.streams.get(name, 0)
        target.streams[name] = append_output(uid=uid, stream=name, offset=here, content=content)
    elif step == "store":
        # A file that is stored already stays as it is: the cell stores each name once.
        if name not in target.artifacts:
            store_artifact(target.attempt, name, content)
            target.artifacts[name] = size
    elif name not in target.announced:
        announce_artifact(uid=uid, name=name, size=size, sha256="0" * 64)
        target.announced[name] = size
