"""Retry rules in the API: refused with their fields, accepted in dry runs, shown with attempts."""

from collections.abc import Callable

from controlplane.models import Attempt, Cell, Job, Task, TaskGroup
from tests.integration.api.conftest import Caller
from tests.integration.api.test_reading import place

JOB = {"name": "a", "image": "busybox", "command": ["true"], "retries": {"failure": 2}}
RULES = [{"codes": [75, 3], "do": "retry"}, {"reason": "oom", "codes": [137], "do": "fail"}]


def test_faults_of_rules_are_listed_with_their_fields(submitter: Caller) -> None:
    rules = [{"codes": [300], "do": "retry"}, {"reson": "oom", "do": "fail"}, {"do": "fail"}]
    for path in ("/jobs", "/jobs:dry-run"):
        answer = submitter.post(path, {**JOB, "on_exit": rules})
        assert answer.status == 422
        assert answer.faults == {
            "on_exit[0].codes[0]": "must be at most 255",
            "on_exit[1].reson": "unknown field; did you mean reason?",
            "on_exit[2]": "must have codes, reason or both",
        }
    assert not Job.objects.exists()


def test_rule_that_retries_without_retries_is_refused_in_each_form(submitter: Caller) -> None:
    text = "retries within retries.failure, which is 0: set it to at least 1"
    short = submitter.post("/jobs", {**JOB, "retries": {}, "on_exit": RULES})
    assert (short.status, short.faults) == (422, {"on_exit[0].do": text})
    group = {"name": "b", "image": "x", "on_exit": RULES}
    grouped = submitter.post("/jobs", {"name": "a", "groups": [group]})
    assert grouped.faults == {"groups[0].on_exit[0].do": text}


def test_rules_are_stored_with_the_group_and_the_number_with_the_attempt(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    job = submitter.post("/jobs", {**JOB, "on_exit": RULES}).json
    assert job["spec"]["on_exit"] == RULES
    assert TaskGroup.objects.get().retry_rules == [
        {"codes": [3, 75], "do": "retry"},
        {"codes": [137], "reason": "out_of_memory", "do": "fail"},
    ]
    place(Task.objects.get(), make_cell())
    attempt = Attempt.objects.get()
    assert submitter.get(f"/attempts/{attempt.uid}").json["retry_rule"] is None
    Attempt.objects.update(retry_rule=2)
    assert submitter.get(f"/attempts/{attempt.uid}").json["retry_rule"] == 2
    assert submitter.get(f"/tasks/{attempt.task_id}").json["retry_rule"] == 2
