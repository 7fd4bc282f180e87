"""What Hypothesis draws for a course: jobs, and words of cells."""

from typing import Any

from hypothesis import strategies as st

from controlplane.contract.states import FailureKind, Phase
from controlplane.contract.states import TaskState as S

numbers = st.integers(0, 1_000)
retries = st.fixed_dictionaries(
    {name: st.integers(0, 2) for name in ("failure", "preemption", "system")}
)
RULES: tuple[dict[str, Any], ...] = (
    {"codes": [1], "do": "fail"},
    {"codes": [1, 2], "reason": "exit_status", "do": "retry"},
    {"codes": [2], "do": "fail"},
    {"codes": [1, 2], "do": "retry", "resources": {"memory": "2x"}},
    {"reason": "system_failure", "do": "retry"},
    {"reason": "system_failure", "do": "fail"},
    {"reason": "build_timeout", "do": "retry"},
)


@st.composite
def groups(draw: st.DrawFn, number: int, *, is_gang: bool) -> dict[str, Any]:
    """One group of a job, which may wait for those before it."""
    group: dict[str, Any] = {"name": f"g{number}", "image": "x", "command": ["true"]}
    group["resources"] = {"cpu": 1, "memory": "64Mi"}
    group["replicas"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        group["min_available"] = draw(st.integers(0, group["replicas"]))
    group["retries"] = draw(retries)
    if draw(st.integers(0, 3)) == 0:
        group["delivery"], group["retries"]["failure"] = "at_most_once", 0
    wanted = draw(st.lists(st.sampled_from(RULES), max_size=2))
    may_retry = group["retries"]["failure"] > 0
    group["on_exit"] = [
        rule
        for rule in wanted
        if (may_retry or rule["do"] == "fail") and not (is_gang and "resources" in rule)
    ]
    group["exclusive"] = draw(st.sampled_from([False, False, False, True, "strict"]))
    if draw(st.integers(0, 3)) == 0:
        group["timeout_seconds"] = 30
    if number and not is_gang and draw(st.booleans()):
        until = draw(st.sampled_from(["started", "succeeded", "finished"]))
        group["depends_on"] = [{"group": f"g{draw(st.integers(0, number - 1))}", "until": until}]
    return group


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a job without links to other jobs."""
    is_gang = draw(st.integers(0, 2)) == 0
    body: dict[str, Any] = {"name": draw(st.sampled_from("ab")), "coscheduled": is_gang}
    count = draw(st.sampled_from([1, 1, 2, 3]))
    body["groups"] = [draw(groups(number, is_gang=is_gang)) for number in range(count)]
    if draw(st.booleans()):
        body["max_task_failures"] = draw(st.integers(0, 2))
    if draw(st.integers(0, 3)) == 0:
        body["scheduling_timeout_seconds"] = draw(st.sampled_from([20, 300]))
    if draw(st.integers(0, 3)) == 0:
        body["existing_job_policy"] = draw(st.sampled_from(["replace", "replace", "keep", "error"]))
    return body


# What a cell may report of an attempt.
WORDS: tuple[dict[str, Any], ...] = (
    {"state": S.BUILDING, "phase": Phase.PULLING},
    {"state": S.BUILDING, "phase": Phase.CREATING},
    {"state": S.RUNNING},
    {"state": S.RUNNING},
    {"state": S.SUCCEEDED, "exit_code": 0},
    {"state": S.SUCCEEDED, "exit_code": 0},
    {"state": S.FAILED, "exit_code": 1},
    {"state": S.FAILED, "exit_code": 2},
    {"state": S.FAILED, "failure_kind": FailureKind.SYSTEM},
    {"state": S.FAILED, "failure_kind": FailureKind.OUTSIDE},
    {"state": S.KILLED, "reason": "stopped"},
    {"state": S.KILLED, "reason": "timeout"},
    {"state": S.WORKER_FAILED, "reason": "refused"},
    {"state": S.WORKER_FAILED, "reason": "refused", "gone": True, "never_created": True},
    {"state": S.WORKER_FAILED, "reason": "vanished"},
    {"state": S.PREEMPTED, "reason": "drained"},
    {"state": S.ASSIGNED},
    {"state": S.PENDING},
)
words = st.sampled_from(WORDS)
clarity = st.sampled_from([True, True, True, False])
