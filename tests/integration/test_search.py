"""The search by parts of names, guids, labels and uids, and its plans."""

from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell, Domain, Job, Pool, Project, Task, TaskGroup
from controlplane.queries import search
from tests.integration.admin.rows import make_installation, make_job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _installation(db: None) -> None:
    make_installation()


def add_job(name: str, *, states: tuple[S, ...] = (S.PENDING,), **fields: object) -> Job:
    project, owner = Project.objects.get(name="default"), User.objects.get(username="ann")
    job = make_job(project, Pool.objects.get(name="default"), owner, list(states))
    Job.objects.filter(pk=job.pk).update(name=name, **fields)
    job.refresh_from_db()
    return job


@pytest.mark.parametrize(
    "term", ["train-sweep", "train", "TRAIN", "sweep-of", "run-77", "RUN-7", "un-77", "team=vision"]
)
def test_jobs_are_found_by_parts_of_names_guids_and_labels(term: str) -> None:
    job = add_job("train-sweep-of-May", guid="run-77", labels={"team": "vision"})
    add_job("other")
    assert search.find_job_ids(term) == [job.pk]


@pytest.mark.parametrize(
    "term", ["owner=A", 'ner=a"b', 'a"b\\c', "owner", "b\\", "team=x", "eam=", "=x"]
)
def test_labels_are_found_by_a_part_of_key_and_value(term: str) -> None:
    job = add_job("train", labels={"team": "x", "owner": 'A"b\\c'})
    add_job("other", labels={"size": "9"})
    assert search.find_job_ids(term) == [job.pk]


def test_jobs_are_found_by_their_id_and_the_newest_come_first() -> None:
    jobs = [add_job("resnet"), add_job("my-resnet"), add_job("resnet-2")]
    assert search.find_job_ids(str(jobs[0].pk)) == [jobs[0].pk]
    assert search.find_job_ids("resnet") == [job.pk for job in jobs[::-1]]
    assert search.find_job_ids("resnet", limit=2) == [jobs[2].pk, jobs[1].pk]


@pytest.mark.parametrize("term", ["", "%", "_", "\\", "a%b", "\x00", "x" * 300, "9" * 40, "²"])
def test_special_characters_are_plain_text(term: str) -> None:
    assert search.find_job_ids(term) == []
    assert search.find_task_ids(term) == []
    assert search.find_attempt_uids(term) == []
    assert search.find_cells(term, limit=5) == []


def test_an_underscore_finds_only_names_with_an_underscore() -> None:
    job = add_job("my_job")
    add_job("my-job")
    assert search.find_job_ids("my_j") == [job.pk]


def test_deleted_jobs_are_not_found() -> None:
    job = add_job("train", states=(S.SUCCEEDED,), deleted_at=clock.now())
    task = Task.objects.get(job=job)
    assert search.find_job_ids("train") == []
    assert search.find_job_ids(str(job.pk)) == []
    assert task.pk not in search.find_task_ids(str(task.pk))
    assert search.find_task_ids("train/main.0") == []
    assert search.find_attempt_uids(str(task.attempt_uid)) == []


def test_only_jobs_of_readable_projects_are_found() -> None:
    other = Project.objects.create(domain=Domain.objects.get(), name="secret")
    hidden = add_job("train-hidden", project=other, guid="train-guid")
    shown = add_job("train-shown")
    for term in ("train", "rain", "train-guid", str(hidden.pk)):
        assert hidden.pk not in search.find_job_ids(term, readable=[shown.project_id])
        assert search.find_job_ids(term, readable=[]) == []
    assert search.find_job_ids("train", readable=[shown.project_id]) == [shown.pk]
    assert search.find_job_ids("hidden", readable=[other.pk]) == [hidden.pk]


def test_a_beginning_finds_jobs_that_are_older_than_the_scanned_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "SCANNED_JOBS", 1)
    old = add_job("train-sweep", guid="run-77")
    add_job("newer")
    assert search.find_job_ids("train") == [old.pk]
    assert search.find_job_ids("run-7") == [old.pk]
    assert search.find_job_ids("sweep-x") == []
    assert search.find_job_ids("rain") == []


def test_tasks_are_found_by_job_group_and_index() -> None:
    job = add_job("train-sweep", states=(S.PENDING,) * 3)
    TaskGroup.objects.filter(job=job).update(name="shard")
    first, second, third = (
        Task.objects.filter(job=job).order_by("index").values_list("pk", flat=True)
    )
    for term in ("train-sweep/shard.1", "train/sha.1", f"{job.pk}/shard.1", "shard.1", "/shard.1"):
        assert search.find_task_ids(term) == [second], term
    for term in ("train-sweep/shard", "train-sweep/", "shard"):
        assert search.find_task_ids(term) == [third, second, first], term
    assert first in search.find_task_ids(str(first))
    for term in (
        "train-sweep/shard.3",
        "train-sweep/other.1",
        "other/shard.1",
        "shard.7777777777",
    ):
        assert search.find_task_ids(term) == [], term
    [found] = search.find_tasks("train-sweep/shard.2", limit=5)
    assert (found.id, found.name, found.state) == (third, "train-sweep/shard.2", S.PENDING)


def test_attempts_are_found_by_the_beginning_of_their_uid() -> None:
    job = add_job("train", states=(S.RUNNING,))
    [attempt] = Attempt.objects.filter(job=job)
    uid = UUID("0199a1b2-c3d4-7000-8000-00000000abcd")
    Attempt.objects.filter(pk=attempt.pk).update(uid=uid)
    for term in ("0199a1", "0199A1B2-C3", "0199a1b2c3d47", str(uid)):
        assert search.find_attempt_uids(term) == [uid], term
    for term in ("0199a", "0199a2", "199a1b2", f"{uid}0", "0199a1-x"):
        assert search.find_attempt_uids(term) == [], term


def test_cells_pools_and_projects_are_found_by_a_part_of_their_name() -> None:
    cell = Cell.objects.get(name="cell-ready")
    assert [row.id for row in search.find_cells("READY", limit=5)] == [cell.pk]
    assert len(search.find_cells("cell", limit=2)) == 2
    assert [row.name for row in search.find_pools("gp", limit=5)] == ["gpu"]
    assert [row.name for row in search.find_projects("default/def", limit=5)] == ["default/default"]


@pytest.mark.parametrize("index", ["job_name_beginning", "job_guid_beginning"])
def test_beginnings_are_found_by_an_index(index: str) -> None:
    [job] = Job.objects.all()
    fields = {
        field.attname: getattr(job, field.attname)
        for field in Job._meta.concrete_fields
        if field.name not in ("id", "name", "guid")
    }
    Job.objects.bulk_create(
        Job(**fields, name=f"job-{number}", guid=f"guid-{number}") for number in range(2_000)
    )
    with CaptureQueriesContext(connection) as caught:
        search.find_job_ids("job-77")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE controlplane_job")
        cursor.execute(f"EXPLAIN {caught[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert index in plan, plan
    assert ">= 'job-77'" in plan, plan
    assert "Seq Scan on controlplane_job" not in plan, plan
