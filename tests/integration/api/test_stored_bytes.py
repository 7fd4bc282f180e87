"""A project stores at most `stored_bytes`: uploads and new jobs above the limit are refused."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.commands.tenancy.stored_bytes import record_output
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import Attempt, Cell, Job, Quota, Task
from controlplane.queries.placement.quotas import find_limits
from controlplane.queries.tenancy.stored_bytes import find_storage_of_attempt
from tests.integration.api.conftest import Answer, Caller, change_setting, check_described
from tests.integration.api.test_artifacts import digest, files, put, signed
from tests.integration.api.test_logs import read, upload
from tests.integration.api.test_reading import place, submit

JOB: dict[str, Any] = {"name": "a", "image": "busybox", "command": ["true"]}
TASK: dict[str, Any] = {"guid": "one", "domain": "x", "definition": {"image": "busybox"}}


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


def limit(operator: Caller, size: object, subject: str = "project/default") -> None:
    answer = operator.put(f"/quotas/{subject}", {"stored_bytes": size})
    assert (answer.status, answer.json["stored_bytes"]) == (200, size)


def stored(caller: Caller) -> int:
    """What the API shows as stored for the project, everywhere the same."""
    shown = caller.get("/projects/default/default").json
    [listed] = caller.get("/projects").json["results"]
    usage = caller.get("/quotas/project/default").json["usage"]["stored_bytes"]
    assert shown["stored_bytes"] == listed["stored_bytes"] == usage
    return int(usage)


def delete(attempt: Attempt) -> None:
    """End the job and its attempt, and delete them with their files."""
    now = clock.now() - timedelta(minutes=1)
    ended = {"state": TaskState.SUCCEEDED, "finished_at": now}
    Attempt.objects.filter(job=attempt.job_id).update(released_at=now, **ended)
    Task.objects.filter(job=attempt.job_id).update(attempt_open=False, **ended)
    Job.objects.filter(pk=attempt.job_id).update(settled_at=now, **ended)
    delete_job(job_id=attempt.job_id, actor="ann", now=clock.now())
    assert purge_deleted(lambda: False).jobs == 1


def announce(cell: Cell, attempt: Attempt, name: str, size: int) -> Answer:
    path = f"{path_of(str(attempt.uid), name)}?size={size}&sha256={digest(b'')}"
    return Caller(None).send("POST", path.removeprefix("/api/v1"), **signed(cell, path, b""))


def check_refused(answer: Answer) -> None:
    """The limit, and no passing lack of space, with usage, limit and what frees space."""
    assert answer.status == 507
    check_described("Problem", answer.json)
    assert answer.json["code"] == "stored_bytes"
    assert "Retry-After" not in answer.headers
    text = answer.json["detail"]
    assert "project default/default stores 8 bytes" in text
    assert "its limit stored_bytes is 10 bytes" in text
    assert "cellrun delete" in text
    assert "cellrun quota project default/default --set stored_bytes" in text


# ------------------------------------------------------------------------------ usage


def test_usage_counts_artifacts_both_streams_and_inputs_until_their_deletion(
    submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    assert stored(submitter) == 0
    put(cell, attempt.uid, "a", b"12345")
    put(cell, attempt.uid, "a", b"12345")  # sent again
    put(cell, attempt.uid, "b", b"1", whole=b"123456")  # and not continued
    upload(cell, attempt.uid, b"out")
    upload(cell, attempt.uid, b"put", offset=3)
    upload(cell, attempt.uid, b"put", offset=3)
    upload(cell, attempt.uid, b"err", stream="stderr")
    assert stored(submitter) == 5 + 6 + 6 + 3
    inputs = [{"path": f"/in/{name}", "content": "twice"} for name in "ab"]
    submit(submitter, name="b", inputs=[*inputs, {"path": "/in/c", "content": "once"}])
    assert stored(submitter) == 20 + 9
    delete(attempt)
    assert stored(submitter) == 9
    with_inputs = place(Task.objects.get(), cell)
    delete(with_inputs)
    assert stored(submitter) == 0


def test_input_counts_for_a_retry_until_the_retry_is_deleted_too(
    submitter: Caller, cell: Cell
) -> None:
    job = submit(submitter, inputs=[{"path": "/in", "content": "12345"}])
    now = clock.now()
    ended = {"state": TaskState.FAILED, "finished_at": now}
    Task.objects.update(**ended)
    Job.objects.update(settled_at=now, **ended)
    assert submitter.post(f"/jobs/{job}/retry").status == 201
    assert stored(submitter) == 10


def test_projects_do_not_count_for_each_other(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    operator.put("/projects/default/other", {})
    put(cell, attempt.uid, "a", b"12345")
    assert operator.get("/projects/default/other").json["stored_bytes"] == 0
    assert operator.get("/projects/default/default").json["stored_bytes"] == 5


# ------------------------------------------------------------------------------ the limit


def test_limit_of_a_project_or_of_all_projects_is_set_and_shown(
    operator: Caller, submitter: Caller
) -> None:
    answer = operator.put("/quotas/project/default", {"stored_bytes": "5Gi"})
    check_described("Quota", answer.json)
    assert (answer.status, answer.json["stored_bytes"]) == (200, 5 * 2**30)
    shown = submitter.get("/projects/default/default").json
    check_described("Project", shown)
    assert shown["stored_bytes_limit"] == 5 * 2**30
    limit(operator, None)
    limit(operator, 7, "default/project")
    assert submitter.get("/projects/default/default").json["stored_bytes_limit"] == 7
    operator.put("/quotas/project/default", {"stored_bytes": None, "weight": 2})
    assert submitter.get("/projects/default/default").json["stored_bytes_limit"] is None


@pytest.mark.parametrize("subject", ["user/ann", "domain/default", "default/user"])
def test_limit_of_users_and_domains_is_refused(
    operator: Caller, submitter: Caller, subject: str
) -> None:
    refused = operator.put(f"/quotas/{subject}", {"stored_bytes": 5})
    assert (refused.status, list(refused.faults)) == (422, ["stored_bytes"])
    assert not Quota.objects.exists()
    usage = submitter.get("/quotas/user/ann").json["usage"]
    assert usage["stored_bytes"] is None


@pytest.mark.parametrize("size", [-1, "-5Gi", "much", 2**53, True])
def test_limit_that_is_no_size_is_refused(operator: Caller, size: object) -> None:
    refused = operator.put("/quotas/project/default", {"stored_bytes": size})
    assert (refused.status, list(refused.faults)) == (422, ["stored_bytes"])


def test_artifact_above_the_limit_is_refused_and_not_stored(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    limit(operator, 10)
    assert put(cell, attempt.uid, "a", b"12345678").status == 200
    check_refused(put(cell, attempt.uid, "b", b"123"))
    check_refused(announce(cell, attempt, "b", 3))
    assert "b" not in files()
    assert stored(submitter) == 8
    # What fits is stored, and what is stored already may be sent again.
    assert put(cell, attempt.uid, "a", b"12345678").status == 200
    assert put(cell, attempt.uid, "b", b"12").status == 200
    assert put(cell, attempt.uid, "empty", b"").status == 200
    assert stored(submitter) == 10


def test_begun_artifact_is_completed_whatever_is_stored_meanwhile(
    operator: Caller, cell: Cell, attempt: Attempt
) -> None:
    limit(operator, 6)
    assert put(cell, attempt.uid, "a", b"12", whole=b"12345").status == 200
    limit(operator, 1)
    assert put(cell, attempt.uid, "a", b"345", whole=b"12345", offset=2).json == {"size": 5}


def test_default_limit_holds_and_one_of_its_own_replaces_it(
    operator: Caller, cell: Cell, attempt: Attempt
) -> None:
    limit(operator, 4, "default/project")
    assert put(cell, attempt.uid, "a", b"12345").status == 507
    limit(operator, 5)
    assert put(cell, attempt.uid, "a", b"12345").status == 200


def test_deletion_of_a_job_frees_its_space(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    submit(submitter, name="other")
    other = place(Task.objects.exclude(pk=attempt.task_id).get(), cell)
    limit(operator, 10)
    put(cell, attempt.uid, "a", b"12345678")
    check_refused(put(cell, other.uid, "b", b"123"))
    delete(attempt)
    assert put(cell, other.uid, "b", b"123").status == 200


def test_full_store_has_another_code_than_the_limit(
    operator: Caller, cell: Cell, attempt: Attempt, settings: Any
) -> None:
    change_setting(settings, store_min_free_mib=1_000_000_000)
    answer = put(cell, attempt.uid, "a", b"1")
    assert (answer.status, answer.json["code"]) == (507, "store_full")


def test_output_ends_with_a_line_that_names_the_limit(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    limit(operator, 8)
    assert upload(cell, attempt.uid, b"12345678").status == 200
    answer = upload(cell, attempt.uid, b"more", offset=8)
    check_gone(answer)
    content, cursor = read(submitter, attempt)
    assert content.startswith(b"12345678more\n[cellrun: project default/default stores 8 bytes, ")
    assert content.endswith(b"its limit stored_bytes is 8 bytes: no more output is stored]\n")
    assert answer.json["size"] == int(cursor) == len(content) == stored(submitter)


def check_gone(answer: Answer) -> None:
    """The limit of the project, and not the maximum size of a stream."""
    assert answer.status == 410
    assert "project default/default stores" in answer.json["detail"]
    assert "its limit stored_bytes is 8 bytes" in answer.json["detail"]
    assert "the stream is full" not in answer.json["detail"]


def end_stdout(operator: Caller, cell: Cell, attempt: Attempt) -> int:
    """Upload output until the limit has ended the stream; return its size."""
    limit(operator, 8)
    upload(cell, attempt.uid, b"12345678")
    answer = upload(cell, attempt.uid, b"more", offset=8)
    assert answer.status == 410
    return int(answer.json["size"])


def test_nothing_is_stored_of_a_stream_that_has_ended(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    size = end_stdout(operator, cell, attempt)
    before = read(submitter, attempt)
    answer = upload(cell, attempt.uid, b"even more", offset=size)
    assert answer.json["size"] == size
    check_gone(answer)
    assert read(submitter, attempt) == before
    assert stored(submitter) == size


def test_restarted_cell_does_not_continue_a_stream_that_has_ended(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    size = end_stdout(operator, cell, attempt)
    before = read(submitter, attempt)
    repeated = upload(cell, attempt.uid, b"12345678moreandmore")
    assert (repeated.status, repeated.json["size"]) == (409, size)
    rest = upload(cell, attempt.uid, b"andmore", offset=size)
    assert (rest.status, rest.json["size"]) == (410, size)
    assert read(submitter, attempt) == before


def test_beginning_of_the_other_stream_is_stored_after_one_has_ended(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    end_stdout(operator, cell, attempt)
    assert upload(cell, attempt.uid, b"Traceback", stream="stderr").status == 410
    content, _ = read(submitter, attempt, "?stream=stderr")
    assert content.startswith(b"Traceback\n[cellrun: ")


def test_stream_continues_after_the_limit_is_raised(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    size = end_stdout(operator, cell, attempt)
    limit(operator, 10_000)
    assert upload(cell, attempt.uid, b"rest", offset=size).json == {"size": size + 4}
    assert read(submitter, attempt)[0].endswith(b"]\nrest")


def test_new_jobs_are_refused_once_the_limit_is_reached(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    body = {**JOB, "guid": "job"}
    job = submitter.post("/jobs", body).json["id"]
    put(cell, attempt.uid, "a", b"12345")
    limit(operator, 6)
    assert submitter.post("/jobs", {**JOB, "name": "b"}).status == 201
    put(cell, attempt.uid, "b", b"6")
    count = Job.objects.count()
    for path, wanted, field in (
        ("/jobs", JOB, "project"),
        ("/jobs:batch", {"jobs": [JOB]}, "jobs[0].project"),
        ("/jobs:dry-run", JOB, "project"),
        ("/tasks", TASK, ""),
    ):
        refused = submitter.post(path, wanted)
        assert refused.status == 422, path
        assert field in next(iter(refused.faults)), refused.json
        assert "project default/default stores 6 bytes" in refused.json["detail"]
        assert "cellrun delete" in refused.json["detail"]
    assert Job.objects.count() == count
    # A job that exists already is still returned.
    assert submitter.post("/jobs", body).json["id"] == job
    limit(operator, 7)
    assert submitter.post("/jobs", JOB).status == 201


def test_inputs_above_the_limit_are_refused_and_not_stored(
    operator: Caller, submitter: Caller
) -> None:
    limit(operator, 10)
    first = {**JOB, "inputs": [{"path": "/in", "content": "12345678"}]}
    second = {**JOB, "name": "b", "inputs": [{"path": "/in", "content": "abc"}]}
    refused = submitter.post("/jobs:batch", {"jobs": [first, second]})
    assert (refused.status, list(refused.faults)) == (422, ["jobs[1].inputs"])
    assert files() == []
    assert submitter.post("/jobs", first).status == 201
    refused = submitter.post("/jobs", second)
    assert (refused.status, list(refused.faults)) == (422, ["inputs"])
    text = refused.faults["inputs"]
    assert "stores 8 bytes, and 3 bytes are to be added" in text
    assert "its limit stored_bytes is 10 bytes" in text
    assert stored(submitter) == 8


def test_retry_is_refused_once_the_limit_is_reached(
    operator: Caller, submitter: Caller, cell: Cell, attempt: Attempt
) -> None:
    put(cell, attempt.uid, "a", b"12345")
    now = clock.now()
    ended = {"state": TaskState.FAILED, "finished_at": now}
    Attempt.objects.update(released_at=now, **ended)
    Task.objects.update(attempt_open=False, **ended)
    Job.objects.update(settled_at=now, **ended)
    limit(operator, 5)
    refused = submitter.post(f"/jobs/{attempt.job_id}/retry")
    assert refused.status == 409
    assert "its limit stored_bytes is 5 bytes" in refused.json["detail"]


def test_limits_of_artifacts_are_read_for_the_first_piece_only(
    operator: Caller, cell: Cell, attempt: Attempt
) -> None:
    limit(operator, 1_000)

    def count_reads(content: bytes, offset: int) -> tuple[int, int]:
        with CaptureQueriesContext(connection) as queries:
            assert put(cell, attempt.uid, "a", content, whole=b"12345", offset=offset).status == 200
        found = [item["sql"] for item in queries]
        return sum("max_artifact_mib" in sql for sql in found), sum(
            "preset" in sql for sql in found
        )

    assert count_reads(b"12", 0) == (1, 1)
    assert count_reads(b"34", 2) == (0, 0)
    assert count_reads(b"5", 4) == (0, 0)


@pytest.mark.parametrize("own", [None, {}, {"stored_bytes": 0}, {"stored_bytes": 7}])
@pytest.mark.parametrize("preset", [None, {}, {"stored_bytes": 5}])
def test_uploads_have_the_limit_that_quotas_have(
    cell: Cell, attempt: Attempt, own: dict[str, int] | None, preset: dict[str, int] | None
) -> None:
    project = Job.objects.get().project_id
    if preset is not None:
        Quota.objects.create(default_for="project", **preset)
    if own is not None:
        Quota.objects.create(project_id=project, **own)
    chosen = preset if own is None else own
    wanted = (chosen or {}).get("stored_bytes")
    [limited] = find_limits([Scope(ScopeKind.PROJECT, project)])
    found = find_storage_of_attempt(attempt.uid)
    ended = record_output(attempt.uid, "stdout", 10) or record_output(attempt.uid, "stdout", 11)
    assert limited.stored_bytes == wanted
    assert (found and found[0].limit) == wanted
    assert (ended and ended.limit) == wanted
    if found is not None:
        assert found[0].project == limited.name
