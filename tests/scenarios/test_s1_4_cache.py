"""S1.4: "the engine checks the Catalog for a cache hit. If a hit is found, it downloads the outputs
and transitions the task directly to Succeeded"; "upon successful completion [it] writes the task's
outputs to the Catalog".
"""

import errno
import hashlib
import os
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane.commands.attempts.artifacts import put_artifact
from controlplane.commands.cache.evict import evict_corrupt, evict_entries
from controlplane.commands.cache.store import store_results
from controlplane.commands.jobs.rerun import retry_job
from controlplane.contract.artifacts import MANIFEST
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.errors import Conflict, NotFound
from controlplane.models import Attempt, CacheEntry, Domain, Job, Project, Task
from controlplane.queries.attempts.artifacts import open_artifact
from controlplane.queries.sql import execute
from controlplane.queries.views.artifacts import find_attempt_with_artifacts, get_task_artifacts
from controlplane.queries.views.tasks import get_task
from controlplane.spec import InvalidSpec, parse_job
from controlplane.storage.current import current_store
from controlplane.storage.manifests import StoredFiles, is_complete, put_manifest
from tests.scenarios.cells import LiveStage, RealCell, script_of
from tests.scenarios.stage import Stage

CACHED = {"cache": {"enabled": True}}


def ran(stage: Stage, result: str | None = "42", **body: Any) -> Job:
    """A job of one task that ran on a cell and succeeded with this result."""
    job = stage.submit_small(**{**CACHED, **body})
    stage.converge()
    stage.place()
    stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result=result)
    stage.converge()
    return job


def again(stage: Stage, **body: Any) -> Job:
    """A job that was looked up and, if that found nothing, placed."""
    job = stage.submit_small(**{**CACHED, **body})
    stage.converge()
    stage.place()
    return job


def status(stage: Stage, job: Job) -> str:
    return str(document(stage, job)["cache_status"])


def document(stage: Stage, job: Job) -> dict[str, Any]:
    return dict(get_task(stage.task(job).pk, now=stage.now()))


def last_of(job: Job, group: str) -> Attempt:
    return Attempt.objects.filter(job=job, group__name=group).latest("number")


def waits_for(stage: Stage, job: Job, group: str) -> str:
    task = Task.objects.get(job=job, group__name=group)
    return str(get_task(task.pk, now=stage.now())["pending_reason"]["code"])


def test_identical_task_succeeds_without_an_attempt(stage: Stage) -> None:
    stage.cell()
    first = ran(stage)
    assert (stage.states(first), status(stage, first)) == (["SUCCEEDED"], "POPULATED")
    second = again(stage)
    assert (stage.states(second), status(stage, second)) == (["SUCCEEDED"], "HIT")
    assert not Attempt.objects.filter(job=second).exists()
    found = document(stage, second)
    assert (found["result"], found["exit_code"], found["cell_id"]) == ("42", None, None)
    assert found["cache_key"] == document(stage, first)["cache_key"]
    assert stage.job(second).state == S.SUCCEEDED
    assert stage.history(second) == [("SUCCEEDED", "cache_hit", "cache")]
    stage.check()


def test_task_without_the_cache_neither_uses_nor_makes_an_entry(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small()
    stage.place()
    stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result="1")
    stage.converge()
    assert (status(stage, job), CacheEntry.objects.count()) == ("DISABLED", 0)
    ran(stage)
    other, _ = stage.placed()
    assert stage.states(other) == ["ASSIGNED"]


@pytest.mark.parametrize(
    "other",
    [
        {"command": ["false"]},
        {"env": {"A": "1"}},
        {"image": "x:2"},
        {"workdir": "/w"},
        {"inputs": [{"path": "/in/a", "content": "b"}]},
        {"cache": {"enabled": True, "version": "2"}},
        {"replicas": 2},
        {"result_file": "/out/other"},
    ],
)
def test_task_that_differs_runs(stage: Stage, other: dict[str, Any]) -> None:
    stage.cell()
    ran(stage)
    job = again(stage, **other)
    assert set(stage.states(job)) == {"ASSIGNED"}


@pytest.mark.parametrize(
    "other",
    [
        {"name": "another"},
        {"band": "batch"},
        {"retries": {"failure": 3}},
        {"timeout_seconds": 60.0},
        {"labels": {"a": "b"}},
        {"resources": {"cpu": 1}},
    ],
)
def test_task_that_differs_only_in_how_it_is_run_has_the_same_result(
    stage: Stage, other: dict[str, Any]
) -> None:
    stage.cell()
    ran(stage)
    body = {**CACHED, "resources": {"cpu": 0.1, "memory": "64Mi"}, **other}
    job = stage.submit(**body)
    stage.converge()
    assert (stage.states(job), status(stage, job)) == (["SUCCEEDED"], "HIT")


def test_given_key_decides_alone(stage: Stage) -> None:
    stage.cell()
    cache = {"enabled": True, "key": "model:2031"}
    ran(stage, command=["one"], cache=cache)
    job = again(stage, command=["two"], cache=cache)
    assert (status(stage, job), document(stage, job)["result"]) == ("HIT", "42")
    newer = again(stage, command=["two"], cache={**cache, "version": "2"})
    assert stage.states(newer) == ["ASSIGNED"]


def test_url_without_a_digest_is_not_cached(stage: Stage) -> None:
    stage.cell()
    inputs = [{"path": "/in/a", "url": "https://example.org/a"}]
    first = ran(stage, inputs=inputs)
    assert (status(stage, first), CacheEntry.objects.count()) == ("SKIPPED", 0)
    inputs[0]["sha256"] = "a" * 64
    ran(stage, inputs=inputs)
    assert status(stage, again(stage, inputs=inputs)) == "HIT"


def test_failed_task_makes_no_entry(stage: Stage) -> None:
    stage.cell()
    job = again(stage, retries={"failure": 1})
    stage.fail(stage.last(job))
    stage.converge()
    assert CacheEntry.objects.count() == 0
    stage.wait(60)
    stage.place()
    stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result="7")
    stage.converge()
    assert (status(stage, job), CacheEntry.objects.get().result) == ("POPULATED", "7")


def test_overwriting_task_runs_and_replaces_the_entry(stage: Stage) -> None:
    stage.cell()
    ran(stage)
    newer = ran(stage, result="43", cache={"enabled": True, "overwrite": True})
    assert status(stage, newer) == "POPULATED"
    assert document(stage, again(stage))["result"] == "43"
    assert CacheEntry.objects.filter(evicted_at=None).count() == 1


def test_entries_of_a_project_are_its_own(stage: Stage) -> None:
    stage.cell()
    home = Project.objects.get(name="default")
    Project.objects.create(domain=home.domain, name="other")
    ran(stage)
    assert stage.states(again(stage, project="other")) == ["ASSIGNED"]
    shared = {"enabled": True, "scope": "domain"}
    ran(stage, cache=shared)
    assert status(stage, again(stage, project="other", cache=shared)) == "HIT"


def test_entries_never_cross_a_domain(stage: Stage) -> None:
    stage.cell()
    Project.objects.create(domain=Domain.objects.create(name="elsewhere"), name="default")
    for scope in ("project", "domain"):
        cache = {"enabled": True, "scope": scope, "key": "k"}
        ran(stage, cache=cache)
        assert stage.states(again(stage, domain="elsewhere", cache=cache)) == ["ASSIGNED"]


@pytest.mark.parametrize(
    "harm", ["cache = '{}'", "cache = '[1]'", """launch = launch || '{"inputs": [{"a": 1}]}'"""]
)
def test_unreadable_group_runs_without_the_cache_and_holds_up_no_other(
    stage: Stage, harm: str
) -> None:
    stage.cell()
    bad, good = stage.submit_small(**CACHED), stage.submit_small(**CACHED, command=["other"])
    execute(f"UPDATE controlplane_taskgroup SET {harm} WHERE job_id = %s", [bad.pk])
    stage.converge()
    stage.place()
    assert (status(stage, bad), status(stage, good)) == ("SKIPPED", "MISS")
    assert stage.states(good) == ["ASSIGNED"]


def test_group_that_becomes_unreadable_while_it_runs_holds_up_no_other(stage: Stage) -> None:
    stage.cell()
    bad, good = again(stage), again(stage, command=["other"])
    execute("UPDATE controlplane_taskgroup SET cache = '{}' WHERE job_id = %s", [bad.pk])
    for job in (bad, good):
        stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result="1")
    stage.converge()
    assert (status(stage, bad), status(stage, good)) == ("SKIPPED", "POPULATED")


def test_truncated_result_is_not_cached(stage: Stage) -> None:
    stage.cell()
    job = again(stage)
    stage.end(stage.last(job), S.SUCCEEDED, exit_code=0, result="1", result_truncated=True)
    stage.converge()
    assert (status(stage, job), CacheEntry.objects.count()) == ("SKIPPED", 0)


def test_result_outlives_the_job_that_made_it(stage: Stage) -> None:
    stage.cell()
    first = ran(stage, ttl_seconds_after_finished=10)
    stage.wait(60)
    stage.settle()
    assert not Job.objects.filter(pk=first.pk).exists()
    job = again(stage)
    assert (status(stage, job), document(stage, job)["result"]) == ("HIT", "42")


def test_entry_without_hits_is_evicted_after_its_time(stage: Stage) -> None:
    stage.cell()
    ran(stage, ttl_seconds_after_finished=10)
    entry = CacheEntry.objects.get()
    stage.wait(29 * 86_400)
    hit = again(stage, ttl_seconds_after_finished=40 * 86_400)
    assert status(stage, hit) == "HIT"
    stage.wait(29 * 86_400)
    stage.settle()
    assert CacheEntry.objects.get().evicted_at is None
    stage.wait(2 * 86_400)
    stage.settle()
    # The task that has its result keeps it.
    assert CacheEntry.objects.get().evicted_at is not None
    assert document(stage, hit)["result"] == "42"
    assert stage.states(again(stage)) == ["ASSIGNED"]
    Job.objects.filter(pk=hit.pk).update(expires_at=stage.now())
    stage.settle()
    assert not CacheEntry.objects.filter(pk=entry.pk).exists()


def test_entry_that_is_evicted_during_the_lookup_is_not_used(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evict_meanwhile(files: StoredFiles) -> bool:
        evict_entries([CacheEntry.objects.get().pk], "a user evicted it", now=stage.now())
        return is_complete(files)

    stage.cell()
    ran(stage)
    monkeypatch.setattr("controlplane.commands.cache.lookup.is_complete", evict_meanwhile)
    job = again(stage)
    assert stage.job(job).state != S.SUCCEEDED
    stage.converge()
    stage.place()
    assert (stage.states(job), status(stage, job)) == (["ASSIGNED"], "MISS")


def test_task_that_became_a_miss_meanwhile_is_not_ended_as_a_hit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nothing_meanwhile(files: StoredFiles) -> bool:
        missed = {"cache_status": int(CacheStatus.MISS), "cache_blocked": False}
        Task.objects.filter(state=S.PENDING).update(**missed)
        return is_complete(files)

    stage.cell()
    ran(stage)
    monkeypatch.setattr("controlplane.commands.cache.lookup.is_complete", find_nothing_meanwhile)
    job = stage.submit_small(**CACHED)
    stage.converge()
    assert (stage.states(job), status(stage, job)) == (["PENDING"], "MISS")
    assert CacheEntry.objects.get().hits == 0


def test_result_that_another_process_stored_meanwhile_is_not_stored_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_and_evict_meanwhile(prefix: str, **content: Any) -> str:
        monkeypatch.undo()
        store_results(now=stage.now())
        evict_entries([CacheEntry.objects.get().pk], "a user evicted it", now=stage.now())
        return put_manifest(prefix, **content)

    stage.cell()
    monkeypatch.setattr("controlplane.commands.cache.store.put_manifest", store_and_evict_meanwhile)
    job = ran(stage)
    assert (status(stage, job), CacheEntry.objects.filter(evicted_at=None).count()) == (
        "POPULATED",
        0,
    )


def test_upload_that_ends_after_the_deletion_of_its_attempt_keeps_the_files_of_the_entry(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.cell()
    job = ran(stage)
    uid, digest = stage.last(job).uid, hashlib.sha256(b"late").hexdigest()
    prefix = CacheEntry.objects.get().prefix
    with pytest.raises(Conflict):
        put_artifact(uid=uid, name="late", size=4, sha256=digest, offset=0, content=b"late")

    def delete_meanwhile(*_: Any, **__: Any) -> int:
        Job.objects.filter(pk=job.pk).update(deleted_at=stage.now(), settled_at=stage.now())
        return 4

    Attempt.objects.update(released_at=None)
    monkeypatch.setattr("controlplane.storage.folder.put_piece", delete_meanwhile)
    with pytest.raises(NotFound):
        put_artifact(uid=uid, name="late", size=4, sha256=digest, offset=0, content=b"late")
    manifest = current_store().open_artifact(prefix, MANIFEST)
    assert manifest is not None
    manifest.close()


def test_store_that_is_not_mounted_is_no_reason_to_evict(stage: Stage) -> None:
    stage.cell()
    ran(stage)
    mounted = Path(settings.CELLRUN.store_folder) / "artifacts"
    unmounted = mounted.rename(mounted.with_name("elsewhere"))
    try:
        job = again(stage)
    finally:
        unmounted.rename(mounted)
    assert (stage.states(job), status(stage, job)) == (["ASSIGNED"], "LOOKUP_FAILURE")
    assert CacheEntry.objects.get().evicted_at is None


def test_check_of_many_files_in_a_slow_store_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, seconds = list[str](), count(step=3)

    def slow(prefix: str, name: str) -> BytesIO:
        opened.append(name)
        return BytesIO(b"x")

    file = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    outputs = [{**file, "name": f"part-{number}"} for number in range(1_000)]
    with monkeypatch.context() as patch:
        patch.setattr("controlplane.storage.folder.open_artifact", slow)
        patch.setattr("controlplane.storage.manifests.time.monotonic", lambda: next(seconds))
        with pytest.raises(TimeoutError):
            is_complete(StoredFiles("prefix", outputs, str(file["sha256"])))
    assert len(opened) == 3


def test_folder_that_does_not_respond_is_no_reason_to_evict(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    stage.cell()
    ran(stage)
    with monkeypatch.context() as patch:
        patch.setattr("controlplane.storage.folder.artifacts.open", fail, raising=False)
        job = again(stage)
    assert (stage.states(job), status(stage, job)) == (["ASSIGNED"], "LOOKUP_FAILURE")
    assert CacheEntry.objects.get().evicted_at is None


def test_corrupt_file_of_the_job_that_was_retried_evicts_its_entry(stage: Stage) -> None:
    stage.cell()
    ran(stage, cache={"enabled": True, "key": "one"})
    inputs = [{"path": "/in", "from": {"group": "first", "result": True}}]
    groups = [
        stage.group("first", cache={"enabled": True, "key": "one"}, command=["c"]),
        stage.group("second", command=["c"], inputs=inputs, retries={"failure": 0}),
    ]
    job = stage.submit(groups=groups)
    stage.converge()
    stage.place()
    stage.fail(last_of(job, "second"))
    stage.settle()
    retried = retry_job(job_id=job.pk, guid=None, actor="me", now=stage.now()).job_id
    file = {"name": "model", "size": 1, "sha256": "f" * 64}
    CacheEntry.objects.update(outputs=[file])
    reader = Task.objects.get(job=retried).group_id
    assert evict_corrupt(reader, ["0" * 64], now=stage.now()) == 0
    assert evict_corrupt(reader, [file["sha256"]], now=stage.now()) == 1


def test_least_recently_used_entries_go_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.cell()
    for key in ("one", "two", "three"):
        ran(stage, result="x" * 100, cache={"enabled": True, "key": key})
        stage.wait(61)
    again(stage, cache={"enabled": True, "key": "one"})
    limited = settings.CELLRUN.model_copy(update={"max_cache_mib": 250 / 2**20})
    monkeypatch.setattr(settings, "CELLRUN", limited)
    stage.wait(60)
    stage.settle()
    left = CacheEntry.objects.filter(evicted_at=None).values_list("key", flat=True)
    assert set(left) == {"one@1", "three@1"}


def test_entry_above_the_maximum_size_of_the_cache_displaces_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = settings.CELLRUN.model_copy(update={"max_cache_mib": 250 / 2**20})
    monkeypatch.setattr(settings, "CELLRUN", limited)
    stage.cell()
    for key, length in (("one", 100), ("large", 300), ("two", 100)):
        ran(stage, result="x" * length, cache={"enabled": True, "key": key})
        stage.wait(61)
    stage.settle()
    left = CacheEntry.objects.filter(evicted_at=None).values_list("key", flat=True)
    assert set(left) == {"one@1", "two@1"}


def test_job_of_hits_and_misses_succeeds_when_all_have(stage: Stage) -> None:
    stage.cell()
    ran(stage, cache={"enabled": True, "key": "one"})
    groups = [
        stage.group(name, cache={"enabled": True, "key": name}, command=["c"])
        for name in ("one", "two")
    ]
    job = stage.submit(groups=groups)
    stage.converge()
    assert stage.states(job) == ["SUCCEEDED", "PENDING"]
    stage.place()
    stage.succeed(stage.last(job))
    stage.settle()
    assert stage.job(job).state == S.SUCCEEDED
    stage.check()


def test_group_with_dependencies_is_searched_for_when_they_are_met(stage: Stage) -> None:
    stage.cell()
    read = [{"path": "/in", "from": {"group": "a", "result": True}}]
    groups = [stage.group("a"), stage.group("b", inputs=read, **CACHED)]
    for result, expected in (("1", ["SUCCEEDED", "ASSIGNED"]), ("1", ["SUCCEEDED", "SUCCEEDED"])):
        job = stage.submit(groups=groups)
        stage.converge()
        stage.place()
        assert waits_for(stage, job, "b") == "waiting_for_dependency"
        stage.end(last_of(job, "a"), S.SUCCEEDED, exit_code=0, result=result)
        stage.converge()
        stage.place()
        assert stage.states(job) == expected
        for attempt in Attempt.objects.filter(job=job, released_at=None):
            stage.end(attempt, S.SUCCEEDED, exit_code=0, result="b")
        stage.converge()
    # Another result of the first group makes another key.
    job = stage.submit(groups=groups)
    stage.place()
    stage.end(last_of(job, "a"), S.SUCCEEDED, exit_code=0, result="2")
    stage.converge()
    stage.place()
    assert stage.states(job) == ["SUCCEEDED", "ASSIGNED"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"coscheduled": True, **CACHED}, "groups[0].cache.enabled"),
        ({"kind": "interactive", **CACHED}, "groups[0].cache.enabled"),
        ({"cache": {"serialize": True}}, "cache"),
        ({"cache": {"enabled": True, "key": "a b"}}, "cache.key"),
        ({"cache": {"enabled": True, "key": "x" * 257}}, "cache.key"),
        ({"cache": {"enabled": True, "version": ""}}, "cache.version"),
    ],
)
def test_impossible_use_of_the_cache_is_refused(body: dict[str, Any], field: str) -> None:
    groups = [{"name": "g", "image": "x"}]
    with pytest.raises(InvalidSpec) as refused:
        parse_job({"name": "a", "groups": groups, **body})
    assert [fault.field for fault in refused.value.faults] == [field]


# ------------------------------------------------------------------------ with programs that run


def work(live: LiveStage, cell: RealCell, script: str, **body: Any) -> Job:
    job = live.run(cell, script.replace("@", cell.root), **{**CACHED, **body})
    live.until_settled(job)
    return job


def read_of(live: LiveStage, attempt: Attempt) -> str:
    return str(live.until(lambda: live.log(attempt)))


def test_outputs_of_a_hit_are_those_of_the_task_that_ran(live: LiveStage, cell: RealCell) -> None:
    script, outputs = "echo once >> @/out/model; echo 5 > @/out/result", [{"path": "/out/model"}]
    first = work(live, cell, script, outputs=outputs)
    live.until(lambda: live.document(first)["cache_status"] == "POPULATED")
    second = work(live, cell, script, outputs=outputs)
    assert live.document(second)["cache_status"] == "HIT"
    assert live.result(second) == live.result(first) == "5\n"
    [kept] = get_task_artifacts(live.task(second).pk)["artifacts"]
    assert (kept["name"], kept["size"]) == ("model", 5)
    file, _ = open_artifact(find_attempt_with_artifacts(live.task(second).pk), "model")
    with file:
        assert file.read() == b"once\n"
    assert Attempt.objects.count() == 1


def test_dependent_group_reads_results_and_outputs_of_hits(live: LiveStage, cell: RealCell) -> None:
    make = f"echo model > {cell.root}/out/model; echo 5 > {cell.root}/out/result"
    read = f"cat {cell.root}/m/0/model {cell.root}/r/0"
    inputs = [
        {"path": "/m", "from": {"group": "fit", "output": "model"}},
        {"path": "/r", "from": {"group": "fit", "result": True}},
    ]
    groups = [
        live.group("fit", outputs=[{"path": "/out/model"}], **script_of(cell, make), **CACHED),
        live.group("report", inputs=inputs, **script_of(cell, read)),
    ]
    for tasks in (2, 3):  # the second job runs its report only
        job = live.submit(groups=groups)
        live.until_settled(job)
        assert live.states(job) == ["SUCCEEDED"] * 2, live.describe()
        assert Attempt.objects.count() == tasks
        assert read_of(live, live.newest(job)[-1]) == "model\n5\n"
        live.until(lambda: not Task.objects.filter(state=S.SUCCEEDED, cache_status=3).exists())


@pytest.mark.parametrize("harm", ["changed", "truncated", "removed"])
def test_damaged_files_are_found_and_the_task_runs_again(
    live: LiveStage, process_cell: RealCell, harm: str
) -> None:
    cell, outputs = process_cell, [{"path": "/out/model"}]
    first = work(live, cell, "echo model > @/out/model", outputs=outputs)
    live.until(lambda: live.document(first)["cache_status"] == "POPULATED")
    prefix = CacheEntry.objects.get().prefix
    stored = Path(settings.CELLRUN.store_folder) / "artifacts" / prefix / "model"
    if harm == "removed":
        stored.unlink()
    else:
        stored.write_text("mode1\n" if harm == "changed" else "")
    second = work(live, cell, "echo model > @/out/model", outputs=outputs)
    assert Attempt.objects.filter(job=second).count() == 1, live.describe()
    entries = CacheEntry.objects.filter(evicted_at=None)
    assert live.until(entries.exists)
    assert entries.get().job_id == second.pk


def test_file_that_is_corrupt_at_its_use_is_evicted_and_made_again(
    live: LiveStage, process_cell: RealCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = process_cell
    make = script_of(cell, f"echo model > {cell.root}/out/model")
    read = script_of(cell, f"cat {cell.root}/m/0/model")
    inputs = [{"path": "/m", "from": {"group": "fit", "output": "model"}}]
    groups = [
        live.group("fit", outputs=[{"path": "/out/model"}], **make, **CACHED),
        live.group("report", inputs=inputs, retries={"system": 0}, **read),
    ]

    def job_of_both(state: str) -> Job:
        job = live.submit(groups=groups)
        live.until_settled(job)
        assert live.state(job) == state, live.describe()
        return job

    first = job_of_both("SUCCEEDED")
    live.until(lambda: CacheEntry.objects.exists())
    stored = Path(settings.CELLRUN.store_folder) / "artifacts" / CacheEntry.objects.get().prefix
    (stored / "model").write_text("other\n")
    # The lookup does not read large files.
    monkeypatch.setattr("controlplane.storage.manifests.CHECKED_BYTES", 0)
    second = job_of_both("FAILED")
    report = live.newest(second)[-1]
    assert (report.reason, live.log(report)) == ("input_corrupt", "")
    assert CacheEntry.objects.get().evicted_for == "a file was corrupt"
    third = job_of_both("SUCCEEDED")
    assert Attempt.objects.filter(job=third).count() == 2
    assert read_of(live, live.newest(third)[-1]) == "model\n"
    assert Attempt.objects.filter(job=first).count() == 2


def test_store_that_answers_slowly_does_not_hold_up_convergence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(prefix: str, **_: Any) -> str:
        tried.append(prefix)
        raise TimeoutError("the store does not answer")

    stage.cell()
    job = stage.submit_small(replicas=8, **CACHED)
    stage.converge()
    stage.place()
    monkeypatch.setattr("controlplane.commands.cache.store.put_manifest", fail)
    # As if the first requests had taken all the time of the rule.
    monkeypatch.setattr("controlplane.commands.cache.store.SLICE_SECONDS", 0.0)
    for attempt in stage.attempts(job):
        stage.end(attempt, S.SUCCEEDED, exit_code=0, result="42")
    stage.converge()
    assert 0 < len(tried) < 8
    for _ in range(8):
        stage.converge()
    assert statuses(stage, job) == {"PUT_FAILURE"}
    assert len(set(tried)) == len(tried) == 8
    stage.check()


def test_slow_lookups_do_not_hold_up_convergence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def fail(files: object) -> bool:
        tried.append(files)
        raise TimeoutError("the store does not answer")

    stage.cell()
    first = stage.submit_small(replicas=8, **CACHED)
    stage.converge()
    stage.place()
    for attempt in stage.attempts(first):
        stage.end(attempt, S.SUCCEEDED, exit_code=0, result="42")
    stage.settle()
    assert statuses(stage, first) == {"POPULATED"}
    monkeypatch.setattr("controlplane.commands.cache.lookup.is_complete", fail)
    monkeypatch.setattr("controlplane.commands.cache.lookup.SLICE_SECONDS", 0.0)
    second = stage.submit_small(replicas=8, **CACHED)
    stage.converge()
    assert 0 < len(tried) < 8
    for _ in range(8):
        stage.converge()
    assert statuses(stage, second) == {"LOOKUP_FAILURE"}
    assert len(tried) == 8
    stage.check()


def statuses(stage: Stage, job: Job) -> set[str]:
    """The statuses of the tasks of a job."""
    ids = Task.objects.filter(job=job).values_list("pk", flat=True)
    return {str(get_task(task_id, now=stage.now())["cache_status"]) for task_id in ids}
