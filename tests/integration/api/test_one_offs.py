"""Diego's endpoints: desire, list, get, resolve, delete; refusals with their names."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_task
from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.models import (
    AuditLine,
    Cell,
    Job,
    OneOff,
    Pool,
    Secret,
    Task,
    TaskGroup,
    Transition,
)
from tests.integration.api.conftest import Answer, Caller, change_setting, make_caller
from tests.integration.api.test_reading import pages, place
from tests.integration.loop.test_cells import rows_read

DEFINITION = {"image": "busybox", "command": ["true"]}


def desire(caller: Caller, guid: str = "one", domain: str = "build", **fields: Any) -> Answer:
    body = {"guid": guid, "domain": domain, "definition": {**DEFINITION, **fields}}
    return caller.post("/tasks", body)


def complete(guid: str) -> None:
    """It is cancelled before anything of it was placed."""
    task_id = OneOff.objects.get(guid=guid).task_id
    cancel_task(task_id=task_id, reason="", force=False, actor="me", now=clock.now())


def test_task_document_has_the_diego_fields(submitter: Caller) -> None:
    made = desire(submitter, annotation="a note")
    assert made.status == 201
    task = made.json
    assert made.headers["Location"].endswith("/api/v1/tasks/one")
    assert (task["guid"], task["domain"], task["annotation"]) == ("one", "build", "a note")
    assert (task["state"], task["lifecycle"], task["failed"]) == ("PENDING", "PENDING", False)
    assert (task["failure_reason"], task["result"], task["cell_id"]) == ("", None, None)
    assert task["first_completed_at_ns"] is None
    for name in ("created_at_ns", "updated_at_ns"):
        assert isinstance(task[name], int)
        assert task[name] % 1_000 == 0
    created = Job.objects.get().created_at
    assert task["created_at_ns"] == round(created.timestamp() * 1e6) * 1_000
    for path in ("/tasks/one", f"/tasks/{task['id']}"):
        assert submitter.get(path).json == task


def test_one_off_task_is_a_job_of_one_task_without_retries(submitter: Caller) -> None:
    url = "https://example.org/done"
    desire(submitter, completion_callback_url=url, band="batch")
    job, group = Job.objects.get(), TaskGroup.objects.get()
    assert (job.name, job.guid, job.is_one_off, job.ttl_seconds) == ("one", "one", True, 120)
    assert (job.callback_on, job.callback_url, job.band) == ("task", url, 3)
    assert (group.at_most_once, group.task_count) == (True, 1)
    assert (group.retries_failure, group.retries_preemption, group.retries_system) == (0, 0, 0)
    assert (Transition.objects.get().reason, Transition.objects.get().actor) == ("submitted", "ann")
    assert job.project.name == "default"


def test_scheme_of_a_callback_url_is_lowercased(submitter: Caller) -> None:
    made = desire(submitter, completion_callback_url="HTTPS://Example.org:443/Done")
    assert made.status == 201
    assert Job.objects.get().callback_url == "https://Example.org:443/Done"


def test_definition_overrides_delivery_retries_and_pool(submitter: Caller) -> None:
    Pool.objects.create(name="other")
    options: dict[str, Any] = {
        "delivery": "at_least_once",
        "retries": {"failure": 2},
        "pool": "other",
    }
    made = desire(submitter, "-A_1", **options)
    assert made.status == 201
    group = TaskGroup.objects.get()
    assert (group.at_most_once, group.retries_failure, group.retries_system) == (False, 2, 0)
    job = Job.objects.get()
    assert (job.name, job.guid, job.pool.name) == ("task", "-A_1", "other")
    assert submitter.get("/tasks/-A_1").json["id"] == made.json["id"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"guid": "a b"}, "guid"),
        ({"guid": "a/b"}, "guid"),
        ({"guid": "ä"}, "guid"),
        ({"guid": ""}, "guid"),
        ({"guid": "a\n"}, "guid"),
        ({"guid": "1234"}, "guid"),
        ({"guid": "x" * 256}, "guid"),
        ({"guid": 7}, "guid"),
        ({"guid": None}, "guid"),
        ({"domain": ""}, "domain"),
        ({"domain": "a b"}, "domain"),
        ({"domain": "x" * 256}, "domain"),
        ({"domain": None}, "domain"),
        ({"definition": None}, "definition"),
        ({"definition": []}, "definition"),
        ({"extra": 1}, "extra"),
        ({"definition": {}}, "definition.image"),
        ({"definition": {"image": "Not An Image"}}, "definition.image"),
        ({"definition": {**DEFINITION, "imge": "x"}}, "definition.imge"),
        ({"definition": {**DEFINITION, "replicas": 2}}, "definition.replicas"),
        ({"definition": {**DEFINITION, "guid": "x"}}, "definition.guid"),
        ({"definition": {**DEFINITION, "name": "x"}}, "definition.name"),
        ({"definition": {**DEFINITION, "callback": {}}}, "definition.callback"),
        ({"definition": {**DEFINITION, "groups": []}}, "definition.groups"),
        ({"definition": {**DEFINITION, "pool": "none"}}, "definition.pool"),
        ({"definition": {**DEFINITION, "annotation": "x" * 16_385}}, "definition.annotation"),
        ({"definition": {**DEFINITION, "env": {"CELLRUN_X": "1"}}}, "definition.env.CELLRUN_X"),
        ({"definition": {**DEFINITION, "env": {"A": "a\x00b"}}}, "definition.env.A"),
        (
            {"definition": {**DEFINITION, "resources": {"memory": "x"}}},
            "definition.resources.memory",
        ),
        (
            {"definition": {**DEFINITION, "completion_callback_url": "ftp://x/y"}},
            "definition.completion_callback_url",
        ),
        (
            {"definition": {**DEFINITION, "retries": {"failure": 1}}},
            "definition.retries.failure",
        ),
        (
            {"definition": {**DEFINITION, "secrets": [{"name": "none", "env": "A"}]}},
            "definition.secrets[0].name",
        ),
        ({"definition": {**DEFINITION, "idle_timeout_seconds": 5}}, "definition"),
    ],
)
def test_invalid_field_is_refused_by_name(
    submitter: Caller, change: dict[str, Any], field: str
) -> None:
    body = {"guid": "one", "domain": "build", "definition": DEFINITION, **change}
    answer = submitter.post("/tasks", body)
    assert answer.status == 422, answer.content
    assert [found for found in answer.faults if found.startswith(field)] == [*answer.faults]
    assert not Job.objects.exists()


@pytest.mark.parametrize("missing", ["guid", "domain", "definition"])
def test_missing_field_is_refused_by_name(submitter: Caller, missing: str) -> None:
    body: dict[str, Any] = {"guid": "one", "domain": "build", "definition": DEFINITION}
    del body[missing]
    answer = submitter.post("/tasks", body)
    assert (answer.status, answer.faults) == (422, {missing: "is required"})


def test_guid_of_digits_only_is_refused(submitter: Caller) -> None:
    text = desire(submitter, "1234").faults["guid"]
    assert text == "must not consist of digits only: in a URL that is the id of a task"


def test_body_that_is_not_a_task_is_refused(submitter: Caller) -> None:
    assert submitter.post("/tasks", ["one"]).status == 422
    assert submitter.post("/tasks", None).status == 415
    assert submitter.send("POST", "/tasks", b"{", content_type="application/json").status == 400


def test_unsatisfiable_task_is_refused_with_the_field(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    make_cell()
    answer = desire(submitter, resources={"cpu": 64})
    text = "larger than every cell of the pool: cell-1 comes closest and lacks 62 of 64 cores"
    assert (answer.status, answer.faults) == (422, {"definition.resources.cpu": text})
    assert desire(submitter).status == 201


def test_unfinished_tasks_per_user_are_limited(submitter: Caller, settings: Any) -> None:
    change_setting(settings, max_unfinished_tasks_per_user=1)
    assert desire(submitter, "one").status == 201
    answer = desire(submitter, "two")
    assert (answer.status, list(answer.faults)) == (422, ["definition"])


def test_guid_in_use_is_refused_for_any_user_and_domain(submitter: Caller) -> None:
    made = desire(submitter)
    outsider = make_caller("eve", Role.SUBMITTER)
    for caller, domain in ((submitter, "build"), (submitter, "other"), (outsider, "build")):
        answer = desire(caller, domain=domain)
        assert (answer.status, answer.faults) == (
            409,
            {"guid": f"guid one belongs to task {made.json['id']} already"},
        )
    assert Job.objects.count() == OneOff.objects.count() == 1


def test_jobs_and_one_off_tasks_share_one_guid_namespace(submitter: Caller) -> None:
    job = {"name": "a", **DEFINITION}
    made = submitter.post("/jobs", {**job, "guid": "job-1"}).json
    text = f"guid job-1 belongs to job {made['id']} already"
    assert desire(submitter, "job-1").faults == {"guid": text}
    desire(submitter, "one")
    assert submitter.post("/jobs", {**job, "guid": "one"}).status == 409
    # Though the document is that of the job which the task has become.
    same = Job.objects.get(guid="one").spec
    assert submitter.post("/jobs", same, Idempotency_Key="one").status == 409


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_for_one_guid_create_one_task(submitter: Caller) -> None:
    callers = [submitter, make_caller("eve", Role.SUBMITTER)]
    gate, answers = threading.Barrier(50), []

    def race(number: int) -> None:
        gate.wait(30)
        answers.append(desire(callers[number % 2], domain=f"d{number % 3}").status)
        connection.close()

    threads = [threading.Thread(target=race, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [201] + [409] * 49
    assert (Job.objects.count(), Task.objects.count(), OneOff.objects.count()) == (1, 1, 1)


def test_tasks_are_listed_newest_first_in_pages(submitter: Caller) -> None:
    ids = [desire(submitter, f"t-{n}").json["id"] for n in range(3)]
    job = submitter.post("/jobs", {"name": "a", **DEFINITION, "replicas": 2}).json
    ordinary = [task["id"] for task in submitter.get(f"/jobs/{job['id']}/tasks").json["results"]]
    found = pages(submitter, "/tasks?limit=2")
    assert [[task["id"] for task in page] for page in found] == [
        [ordinary[1], ordinary[0]],
        [ids[2], ids[1]],
        [ids[0]],
    ]
    task = found[0][0]
    assert (task["guid"], task["domain"]) == (str(task["id"]), None)


def test_tasks_are_filtered_by_domain_cell_state_and_lifecycle(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    for guid, domain in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "y")):
        assert desire(submitter, guid, domain).status == 201
    one, other = make_cell(), make_cell("cell-2")
    place(Task.objects.get(one_off__guid="b"), one)
    place(Task.objects.get(one_off__guid="c"), other, state=TaskState.ASSIGNED)
    complete("d")
    complete("e")
    assert submitter.post("/tasks/e/resolving").status == 200

    def guids(query: str) -> list[str]:
        return [task["guid"] for task in submitter.get(f"/tasks?{query}").json["results"]]

    assert guids("domain=x") == ["b", "a"]
    assert guids("domain=none") == []
    assert guids("cell=cell-1") == ["b"]
    assert guids("domain=y&cell=cell-1") == []
    assert guids("state=killed,running") == ["e", "d", "b"]
    assert guids("lifecycle=pending") == ["c", "a"]
    assert guids("lifecycle=RUNNING") == ["b"]
    assert guids("lifecycle=completed") == ["d"]
    assert guids("lifecycle=resolving") == ["e"]
    assert guids("lifecycle=resolving&domain=x") == []
    assert guids("lifecycle=completed,RESOLVING&domain=y") == ["e", "d"]
    assert guids("lifecycle=completed&state=running") == []
    assert guids("lifecycle=running,resolving") == ["e", "b"]
    assert guids("lifecycle=resolving&state=killed") == ["e"]
    assert guids("lifecycle=pending&state=assigned") == ["c"]
    for query in ("lifecycle=gone", "state=gone", "limit=0", "colour=red", "domain=a&domain=b"):
        refused = submitter.get(f"/tasks?{query}")
        assert (refused.status, list(refused.faults)) == (400, [query.partition("=")[0]])


@pytest.mark.parametrize("query", ["state=RUNNING", "state=assigned,running", "lifecycle=RUNNING"])
def test_filtered_list_does_not_read_unrelated_rows(
    submitter: Caller, make_cell: Callable[..., Cell], query: str
) -> None:
    assert desire(submitter).status == 201
    place(Task.objects.get(), make_cell())
    assert submitter.post("/jobs", {"name": "a", **DEFINITION, "replicas": 300}).status == 201
    read: list[int] = []
    with connection.cursor() as cursor:  # what other tests left must not be what the planner knows
        cursor.execute("ANALYZE controlplane_task, controlplane_attempt, controlplane_job")

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "FROM controlplane_task t" in sql:
            with connection.connection.cursor() as cursor:
                cursor.execute("SET enable_seqscan = off")
                cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, params)
                read.append(rows_read(cursor.fetchone()[0][0]["Plan"], "controlplane_task"))
                cursor.execute("RESET enable_seqscan")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        found = submitter.get(f"/tasks?{query}").json["results"]
    assert [task["guid"] for task in found] == ["one"]
    assert read == [2], "to find it, and to tell of it"


def test_every_task_endpoint_accepts_the_guid(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    task_id = desire(submitter).json["id"]
    attempt = place(Task.objects.get(), make_cell())
    for rest in ("", "/attempts", "/explain", "/history"):
        by_guid = submitter.get(f"/tasks/one{rest}")
        assert by_guid.status == 200
        assert by_guid.json == submitter.get(f"/tasks/{task_id}{rest}").json
        assert submitter.get(f"/tasks/other{rest}").status == 404
        assert submitter.get(f"/tasks/0{rest}").status == 404
        assert submitter.get(f"/tasks/{'9' * 30}{rest}").status == 404
    listed = submitter.get("/tasks/one/attempts").json["results"]
    assert [item["uid"] for item in listed] == [str(attempt.uid)]
    cancelled = submitter.post("/tasks/one/cancel")
    assert (cancelled.status, cancelled.json["lifecycle"]) == (202, "COMPLETED")
    assert cancelled.json["failure_reason"] == "task was cancelled"
    assert cancelled.json["cell_id"] == "cell-1"
    again = submitter.post("/tasks/one/cancel")
    assert (again.status, again.json["detail"]) == (409, f"task {task_id} has ended already")


def test_completed_task_is_deleted_by_its_claim(submitter: Caller) -> None:
    task_id = desire(submitter).json["id"]
    early = submitter.post("/tasks/one/resolving")
    assert (early.status, early.json["detail"]) == (409, "task one has not completed")
    assert submitter.send("DELETE", "/tasks/one").status == 409
    complete("one")
    unclaimed = submitter.send("DELETE", "/tasks/one")
    assert unclaimed.json["detail"] == "task one is not RESOLVING: claim it first"
    claimed = submitter.post("/tasks/one/resolving", {})
    assert (claimed.status, list(claimed.json)) == (200, ["claim"])
    task = submitter.get("/tasks/one").json
    assert (task["lifecycle"], task["state"], task["failed"]) == ("RESOLVING", "KILLED", True)
    lost = submitter.post(f"/tasks/{task_id}/resolving")
    assert (lost.status, lost.json["detail"]) == (409, "task one is RESOLVING already, by ann")
    claim = claimed.json["claim"]
    for wrong in ("x", "", "7"):
        refused = submitter.send("DELETE", f"/tasks/one?claim={wrong}")
        assert (refused.status, list(refused.faults)) == (400, ["claim"])
    other = submitter.send("DELETE", "/tasks/one?claim=00000000-0000-4000-8000-000000000000")
    assert (other.status, other.json["detail"]) == (409, "task one is RESOLVING by another claim")
    assert submitter.send("DELETE", f"/tasks/one?claim={claim}").status == 204
    for path in ("/tasks/one", f"/tasks/{task_id}", f"/tasks/{task_id}/history"):
        assert submitter.get(path).status == 404
    assert submitter.send("DELETE", f"/tasks/{task_id}").status == 404
    assert submitter.post("/tasks/one/resolving").status == 404
    assert submitter.get("/tasks").json["results"] == []
    line = AuditLine.objects.get(action="delete.task")
    assert (line.subject, line.actor) == ("task one", "ann")
    anew = desire(submitter, domain="other")
    assert (anew.status, anew.json["id"] != task_id) == (201, True)


def test_deleting_the_job_of_a_task_requires_the_claim(submitter: Caller, operator: Caller) -> None:
    job = desire(submitter).json["job"]
    assert "has not ended" in submitter.send("DELETE", f"/jobs/{job}").json["detail"]
    complete("one")
    for caller in (submitter, operator):
        refused = caller.send("DELETE", f"/jobs/{job}")
        assert (refused.status, refused.json["detail"]) == (
            409,
            "task one is not RESOLVING: claim it first",
        )
    claim = submitter.post("/tasks/one/resolving").json["claim"]
    assert submitter.send("DELETE", f"/jobs/{job}").status == 409
    other = "00000000-0000-4000-8000-000000000000"
    assert submitter.send("DELETE", f"/jobs/{job}?claim={other}").status == 409
    assert submitter.send("DELETE", f"/jobs/{job}?claim=x").status == 400
    assert submitter.get("/tasks/one").json["lifecycle"] == "RESOLVING"
    assert submitter.send("DELETE", f"/jobs/{job}?claim={claim}").status == 204
    assert submitter.get("/tasks/one").status == 404


def test_resolving_task_can_be_deleted_without_the_claim(submitter: Caller) -> None:
    desire(submitter)
    complete("one")
    submitter.post("/tasks/one/resolving")
    assert submitter.send("DELETE", "/tasks/one").status == 204


def test_ordinary_task_cannot_be_resolved_or_deleted(submitter: Caller) -> None:
    job = submitter.post("/jobs", {"name": "a", **DEFINITION}).json
    [task] = submitter.get(f"/jobs/{job['id']}/tasks").json["results"]
    for method, path in (("POST", "/resolving"), ("DELETE", "")):
        refused = submitter.send(method, f"/tasks/{task['id']}{path}")
        assert refused.status == 409
        assert "is not a one-off task" in refused.json["detail"]
        assert submitter.send(method, f"/tasks/999999{path}").status == 404


def test_only_the_submitter_or_an_operator_can_resolve_and_delete(
    submitter: Caller, operator: Caller, anonymous: Caller
) -> None:
    desire(submitter)
    complete("one")
    outsider, reader = make_caller("eve", Role.SUBMITTER), make_caller("rita")
    for method, path in (("POST", "/tasks/one/resolving"), ("DELETE", "/tasks/one")):
        assert outsider.send(method, path).status == 403
        assert reader.send(method, path).status == 403
        assert anonymous.send(method, path).status == 401
    assert reader.post("/tasks", {}).status == 403
    assert operator.post("/tasks/one/resolving").status == 200
    assert operator.send("DELETE", "/tasks/one").status == 204


def test_a_secret_of_the_project_may_be_used(submitter: Caller, manager: Caller) -> None:
    assert manager.put("/secrets/token", {"value": "x"}).status in (200, 201)
    assert Secret.objects.count() == 1
    assert desire(submitter, secrets=[{"name": "token", "env": "TOKEN"}]).status == 201


def test_scheduling_timeout_is_the_installation_setting(submitter: Caller, settings: Any) -> None:
    def seconds(guid: str) -> float:
        desire(submitter, guid)
        group = TaskGroup.objects.get(job__guid=guid)
        assert group.deadline_at is not None
        assert group.startable_at is not None
        return (group.deadline_at - group.startable_at).total_seconds()

    assert seconds("a") == 1800
    change_setting(settings, one_off_scheduling_seconds=5.0)
    assert seconds("b") == 5


def test_retry_of_a_one_off_task_is_an_ordinary_job(submitter: Caller) -> None:
    job_id = desire(submitter, "-one").json["job"]
    complete("-one")
    retry = submitter.post(f"/jobs/{job_id}/retry")
    assert (retry.status, retry.json["guid"]) == (201, None)
    assert Job.objects.get(pk=retry.json["id"]).is_one_off is False
