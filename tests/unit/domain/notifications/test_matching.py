"""What rules select, and what messages contain."""

import pytest

from controlplane.contract.states import TaskState
from controlplane.domain.notifications.matching import EndedJob, EndedJobFilter, select_kinds
from controlplane.domain.notifications.messages import compose, line_of_job

JOB = EndedJob(7, "default/lab", "nightly-3", TaskState.FAILED, {"notify": "team"}, "exit 1")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EndedJobFilter(), True),
        (EndedJobFilter(projects=frozenset({"default/lab"})), True),
        (EndedJobFilter(projects=frozenset({"default/other"})), False),
        (EndedJobFilter(states=frozenset({TaskState.FAILED})), True),
        (EndedJobFilter(states=frozenset({TaskState.SUCCEEDED})), False),
        (EndedJobFilter(name_pattern="nightly-*"), True),
        (EndedJobFilter(name_pattern="Nightly-*"), False),
        (EndedJobFilter(label="team"), True),
        (EndedJobFilter(label="others"), False),
        (EndedJobFilter(name_pattern="nightly-*", label="others"), False),
    ],
)
def test_a_rule_selects_jobs_by_all_of_its_fields(wanted: EndedJobFilter, expected: bool) -> None:
    assert wanted.selects(JOB) is expected


def test_a_rule_selects_alerts_by_kind_and_severity() -> None:
    assert select_kinds(["cell_lost"], only_critical=False) == ["cell_lost"]
    assert select_kinds(["cell_lost", "mass_loss"], only_critical=True) == ["mass_loss"]
    assert "cell_lost" in select_kinds([], only_critical=False)


def test_a_message_counts_all_events_and_lists_the_first_twenty() -> None:
    message = compose("night", [f"event {number}" for number in range(25)], total=1_000)
    assert message.title == "Cellrun: 1000 events (night)"
    lines = message.body.splitlines()
    assert lines[:2] == ["event 0", "event 1"]
    assert lines[19:] == ["event 19", "and 980 more"]


def test_the_line_of_a_job_is_one_bounded_line() -> None:
    assert line_of_job(JOB) == "job 7 nightly-3 of default/lab ended FAILED: exit 1"
    long = EndedJob(7, "a/b", "c", TaskState.FAILED, {}, "x\n" * 1_000)
    assert "\n" not in line_of_job(long)
    assert len(line_of_job(long)) == 300


@pytest.mark.parametrize("text", ["@everyone", "@here", "<!channel>", "@**all**", "<@U0123>"])
def test_a_text_of_a_submitter_mentions_no_user_of_a_chat_service(text: str) -> None:
    line = line_of_job(EndedJob(1, "default/lab", "a", TaskState.KILLED, {}, f"stop {text}"))
    raised = compose("all", [line, f"raised: cell_twin c: {text}\nnext"], total=2)
    assert text not in raised.body
    assert len(raised.body.splitlines()) == 2
    assert raised.body.count("\u2060") == 2


def test_the_digest_of_an_image_can_be_copied_from_a_message() -> None:
    assert "a@sha256:0b1c" in compose("all", ["raised: image a@sha256:0b1c"], total=1).body
