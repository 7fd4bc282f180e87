"""When a command prints why a job waits; time is an argument."""

from typing import Any

from cellrun.api.session import Session
from cellrun.display.waiting import FIRST_SECONDS, SAME_CODE_SECONDS, WaitReporter
from tests.unit.client.documents import a_job, a_page, a_task
from tests.unit.client.stub_server import Api

WAITING = {"task_status_count": {"main": {"phase": {"PENDING": 2}}}, "state": "PENDING"}
QUEUED, LARGE = "queue_position", "larger_than_every_cell"


def answer_reason(api: Api, code: str, text: str) -> None:
    task = a_task(pending_reason={"code": code, "text": text})
    api.answers["GET /api/v1/jobs/7/tasks"] = []
    api.answer("GET /api/v1/jobs/7/tasks", a_page(task))


def test_reason_is_printed_after_three_seconds_and_once(api: Api, session: Session) -> None:
    printed: list[str] = []
    reporter = WaitReporter(session, 7, printed.append)
    answer_reason(api, LARGE, "lacks 999 cores")
    reporter.check(a_job(**WAITING), 100.0)
    reporter.check(a_job(**WAITING), 102.9)
    assert (printed, api.requests) == ([], [])
    for now in (103.0, 104.0, 200.0):
        reporter.check(a_job(**WAITING), now)
    assert printed == ["job 7 waits: lacks 999 cores"]


def test_another_reason_is_printed_at_once_and_new_figures_later(
    api: Api, session: Session
) -> None:
    printed: list[str] = []
    reporter = WaitReporter(session, 7, printed.append)
    reporter.check(a_job(**WAITING), 0.0)
    answer_reason(api, QUEUED, "3 of 9")
    reporter.check(a_job(**WAITING), FIRST_SECONDS)
    answer_reason(api, QUEUED, "2 of 9")
    reporter.check(a_job(**WAITING), FIRST_SECONDS + 1)
    assert printed == ["job 7 waits: 3 of 9"]
    reporter.check(a_job(**WAITING), FIRST_SECONDS + SAME_CODE_SECONDS)
    answer_reason(api, LARGE, "lacks 999 cores")
    reporter.check(a_job(**WAITING), FIRST_SECONDS + SAME_CODE_SECONDS + 1)
    assert printed[1:] == ["job 7 waits: 2 of 9", "job 7 waits: lacks 999 cores"]


def test_start_is_printed_and_a_second_wait_has_its_own_three_seconds(
    api: Api, session: Session
) -> None:
    printed: list[str] = []
    reporter = WaitReporter(session, 7, printed.append)
    running: Any = a_job()
    answer_reason(api, LARGE, "lacks 999 cores")
    for job, now in ((a_job(**WAITING), 0), (a_job(**WAITING), 4), (running, 5)):
        reporter.check(job, now)
    assert printed == ["job 7 waits: lacks 999 cores", "job 7 no longer waits"]
    reporter.check(a_job(**WAITING), 6)
    reporter.check(a_job(**WAITING), 8)
    assert len(printed) == 2
    reporter.check(a_job(**WAITING), 9)
    assert printed[2:] == ["job 7 waits: lacks 999 cores"]


def test_unreadable_reason_does_not_end_the_wait(api: Api, session: Session) -> None:
    printed: list[str] = []
    reporter = WaitReporter(session, 7, printed.append)
    for now in (0.0, 4.0):
        reporter.check(a_job(**WAITING), now)
    assert printed == []
    assert len(api.requests) == 1


def test_schedule_of_a_waiting_job_is_named(api: Api, session: Session) -> None:
    printed: list[str] = []
    reporter = WaitReporter(session, 7, printed.append)
    answer_reason(api, LARGE, "lacks 999 cores")
    instant = {"name": "nightly", "at": "2031-05-04T02:30:00Z"}
    for now in (0.0, FIRST_SECONDS):
        reporter.check(a_job(**WAITING, schedule=instant), now)
    assert printed == ["job 7 of schedule nightly waits: lacks 999 cores"]
