"""Schedules over the API: write, replace, pause, run, history, and who may see their job."""

from typing import Any

from controlplane.domain.roles import Role
from controlplane.models import Job, Schedule
from tests.integration.api.conftest import Caller, make_caller

JOB = {"name": "report", "image": "busybox", "command": ["true"], "allow_unsatisfiable": True}
WANTED = {"cron": "30 2 * * *", "time_zone": "Europe/Berlin", "job": JOB}


def put(caller: Caller, name: str = "nightly", **changes: Any) -> Any:
    return caller.put(f"/schedules/{name}", {**WANTED, **changes})


def test_schedule_is_created_with_defaults_and_replaced(submitter: Caller) -> None:
    made = put(submitter)
    assert made.status == 201
    shown = {name: made.json[name] for name in ("catch_up", "overlap", "paused", "job")}
    assert shown == {"catch_up": "latest", "overlap": "skip", "paused": False, "job": JOB}
    assert made.json["next_at"] is not None
    again = put(submitter, overlap="queue")
    assert (again.status, again.json["overlap"]) == (200, "queue")
    assert submitter.get("/schedules").json["results"] == [again.json]
    assert submitter.get("/schedules/nightly").json == again.json


def test_wrong_fields_are_named_and_nothing_is_stored(submitter: Caller) -> None:
    for body, field in (
        ({**WANTED, "cron": "often"}, "cron"),
        ({**WANTED, "time_zone": "Mars/Olympus"}, "time_zone"),
        ({**WANTED, "overlap": "perhaps"}, "overlap"),
        ({**WANTED, "job": {**JOB, "imge": "x"}}, "job.imge"),
        ({**WANTED, "every": "day"}, "every"),
        ({"job": JOB}, "cron"),
    ):
        refused = submitter.put("/schedules/nightly", body)
        assert refused.status == 422, body
        assert field in [fault["field"] for fault in refused.json["errors"]]
    assert submitter.get("/schedules").json["results"] == []


def test_pause_resume_and_delete(submitter: Caller) -> None:
    put(submitter)
    paused = submitter.post("/schedules/nightly/pause", {"reason": "audit"})
    assert (paused.json["paused"], paused.json["paused_because"]) == (True, "audit")
    assert paused.json["next_at"] is None
    assert submitter.post("/schedules/nightly/pause", {}).status == 409
    resumed = submitter.post("/schedules/nightly/resume", {})
    assert (resumed.json["paused"], resumed.json["paused_because"]) == (False, "")
    assert submitter.send("DELETE", "/schedules/nightly").status == 204
    assert submitter.get("/schedules/nightly").status == 404


def test_run_returns_the_job_and_is_in_the_history(submitter: Caller) -> None:
    put(submitter, paused=True)
    made = submitter.post("/schedules/nightly/run", {})
    assert made.status == 201
    assert Job.objects.get(pk=made.json["id"]).labels == {"schedule": "nightly"}
    [firing] = submitter.get("/schedules/nightly/firings").json["results"]
    assert (firing["outcome"], firing["job"]) == ("started", made.json["id"])


def test_documents_of_its_jobs_name_the_schedule_and_the_instant(submitter: Caller) -> None:
    put(submitter)
    job = submitter.post("/schedules/nightly/run", {}).json
    [firing] = submitter.get("/schedules/nightly/firings").json["results"]
    expected = {"name": "nightly", "at": firing["at"]}
    assert submitter.get(f"/jobs/{job['id']}").json["schedule"] == expected
    [listed] = submitter.get("/jobs").json["results"]
    assert listed["schedule"] == expected
    [task] = submitter.get(f"/jobs/{job['id']}/tasks").json["results"]
    explained = submitter.get(f"/tasks/{task['id']}/explain").json
    assert (explained["state"], explained["schedule"]) == ("PENDING", expected)


def test_job_with_the_guid_and_label_of_a_schedule_has_none(submitter: Caller) -> None:
    put(submitter)
    copied = {"guid": "nightly/2031-05-04T02:30:00Z", "labels": {"schedule": "nightly"}}
    for marks in ({}, copied, {**copied, "guid": "nightly/soon"}):
        made = submitter.post("/jobs", {**JOB, **marks})
        assert (made.status, made.json["schedule"]) == (201, None)


def test_only_owner_and_managers_change_it_and_see_its_job(submitter: Caller) -> None:
    put(submitter)
    other = make_caller("other", Role.SUBMITTER, project="default")
    manager = make_caller("boss", Role.MANAGER, project="default")
    assert other.get("/schedules/nightly").json["job"] is None
    assert put(other).status == 403
    assert other.post("/schedules/nightly/run", {}).status == 403
    assert manager.get("/schedules/nightly").json["job"] == JOB
    assert put(manager).json["owner"] == "boss"
    assert Schedule.objects.get().owner.username == "boss"


def test_archived_project_accepts_no_schedules(submitter: Caller) -> None:
    operator = make_caller("olga", Role.OPERATOR)
    assert operator.put("/projects/default/default", {"archived": True}).status == 200
    assert put(submitter).status == 409
