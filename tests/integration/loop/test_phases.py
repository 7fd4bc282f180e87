"""The history of an attempt is a full timeline, however its reports arrive."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.contract.messages.phases import PhaseChange, PhaseKind
from controlplane.contract.messages.reports import AttemptReport, Reports
from controlplane.contract.states import FailureKind, Phase
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.models import Attempt, Job, Task, Transition
from controlplane.queries.attempts.launch_context import load_launch_context
from controlplane.queries.views.history import change_document, find_attempt_history
from tests.integration.loop.conftest import FakeCell, Loop


@pytest.fixture
def cell(loop: Loop) -> FakeCell:
    return loop.cell()


@pytest.fixture
def began(loop: Loop, cell: FakeCell) -> Attempt:
    loop.submit()
    loop.place()
    # So that there is room for instants between its creation and now.
    earlier = clock.now() - timedelta(seconds=100)
    Attempt.objects.update(created_at=earlier, state_since=earlier)
    return Attempt.objects.get()


def change(
    began: Attempt, number: int, text: str, kind: PhaseKind = PhaseKind.PHASE
) -> PhaseChange:
    return PhaseChange(number, began.created_at.timestamp() + number, kind, text)


def building_report(
    began: Attempt, *phases: PhaseChange, state: S = S.BUILDING, **facts: Any
) -> AttemptReport:
    return AttemptReport(str(began.uid), 0, state, phases=phases, **facts)


def story(began: Attempt) -> list[tuple[str, str, float]]:
    """Reason, message and seconds since its creation of each row of what its cell reported."""
    found = Transition.objects.filter(attempt_uid=began.uid, actor="cell").order_by("id")

    def seconds(at: datetime) -> float:
        return round((at - began.created_at).total_seconds(), 3)

    return [(row.reason, row.message, seconds(row.at)) for row in found]


def building(*texts: str) -> list[tuple[str, str, float]]:
    return [("building", text, float(number)) for number, text in enumerate(texts, 1)]


def test_phases_of_one_report_become_separate_history_rows(cell: FakeCell, began: Attempt) -> None:
    texts = ("preparing", "pulling", "preparing", "creating")
    phases = [change(began, number, text) for number, text in enumerate(texts, 1)]
    cell.report(building_report(began, *phases, phase=Phase.CREATING))
    assert story(began) == building(*texts)
    began.refresh_from_db()
    assert (began.state, began.phase, began.phase_number) == (S.BUILDING, "creating", 4)


def test_the_time_limit_of_a_phase_counts_from_the_report_that_entered_it(
    loop: Loop, cell: FakeCell, began: Attempt
) -> None:
    cell.report(building_report(began, change(began, 1, "pulling"), phase=Phase.PULLING))
    earlier = clock.now() - timedelta(seconds=50)
    Attempt.objects.update(state_since=earlier)
    cell.report(
        building_report(began, change(began, 1, "pulling"), phase=Phase.PULLING, progress=50)
    )
    began.refresh_from_db()
    assert began.state_since == earlier
    phases = [change(began, 1, "pulling"), change(began, 2, "creating")]
    cell.report(building_report(began, *phases, phase=Phase.CREATING))
    began.refresh_from_db()
    assert began.state_since > clock.now() - timedelta(seconds=20)


def batch(cell: FakeCell, *reports: AttemptReport) -> None:
    """Messages that the inbox takes in one batch."""
    texts = []
    for item in reports:
        cell.seq += 1
        body = Reports(cell.last_report, (_numbered(item, cell.seq),)).body()
        cell.last_report = cell.seq
        texts.append(
            envelope.seal(
                keys.mac_key(cell.key, keys.TO_CONTROL),
                cell=cell.name,
                incarnation=cell.incarnation,
                seq=cell.seq,
                body=body,
            )
        )
    cell.loop.inbox.apply(texts)


def _numbered(report: AttemptReport, seq: int) -> AttemptReport:
    fields = {name: getattr(report, name) for name in AttemptReport.__dataclass_fields__}
    return AttemptReport(**{**fields, "seq": seq})


def test_no_phase_is_lost_between_reports_of_one_batch(cell: FakeCell, began: Attempt) -> None:
    """Though the newer one had to leave out what the older one had."""
    words = [change(began, n, f"step {n}", PhaseKind.RUNNER) for n in range(1, 7)]
    batch(cell, building_report(began, *words[:4]), building_report(began, words[0], *words[4:]))
    assert [text for _, text, _ in story(began)] == [f"step {n}" for n in range(1, 7)]


def test_repeated_report_adds_no_history(cell: FakeCell, began: Attempt) -> None:
    phases = [change(began, 1, "preparing"), change(began, 2, "creating")]
    for _ in range(3):
        cell.report(building_report(began, *phases, phase=Phase.CREATING))
    cell.report(building_report(began, *phases, change(began, 3, "checking"), phase=Phase.CHECKING))
    assert story(began) == building("preparing", "creating", "checking")


def test_late_report_adds_no_history(cell: FakeCell, began: Attempt) -> None:
    early = building_report(began, change(began, 1, "preparing"), phase=Phase.PREPARING)
    seq, cell.seq = cell.seq, cell.seq + 5
    phases = [change(began, 1, "preparing"), change(began, 2, "creating")]
    cell.report(building_report(began, *phases, phase=Phase.CREATING))
    cell.seq = seq
    cell.report(early)
    assert story(began) == building("preparing", "creating")


def test_runner_phases_and_failed_tries_are_in_the_attempt_history(
    cell: FakeCell, began: Attempt
) -> None:
    cell.report(
        building_report(
            began,
            change(began, 1, "preparing"),
            change(began, 2, "try 1 of 3 failed: inputs: no answer", PhaseKind.TRY),
            change(began, 3, "queued there", PhaseKind.RUNNER),
        )
    )
    cell.report(
        building_report(
            began,
            change(began, 4, "step 1", PhaseKind.RUNNER),
            change(began, 5, "step 2", PhaseKind.RUNNER),
            state=S.RUNNING,
            started_at=began.created_at.timestamp() + 3.5,
        )
    )
    shown = [
        change_document(entry)
        for entry in find_attempt_history(began.uid, limit=100, merged=False).entries
    ]
    assert [(row["reason"], row["message"]) for row in reversed(shown)] == [
        ("placed", ""),
        ("building", "preparing"),
        ("try_failed", "try 1 of 3 failed: inputs: no answer"),
        ("runner_phase", "queued there"),
        ("started", ""),
        ("runner_phase", "step 1"),
        ("runner_phase", "step 2"),
    ]


def test_phases_reported_after_a_build_timeout_are_recorded(
    loop: Loop, cell: FakeCell, began: Attempt
) -> None:
    cell.report(building_report(began, change(began, 1, "creating"), phase=Phase.CREATING))
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=301))
    loop.converge()
    assert Task.objects.get().state == S.PENDING
    tried = change(began, 2, "try 1 of 3 failed: create: no answer", PhaseKind.TRY)
    cell.report(building_report(began, change(began, 1, "creating"), tried, phase=Phase.CREATING))
    again = change(began, 3, "try 2 of 3 failed: create: no answer", PhaseKind.TRY)
    cell.report(building_report(began, tried, again, state=S.KILLED, reason="stopped", gone=True))
    assert [reason for reason, _, _ in story(began)] == [
        "building",
        "try_failed",
        "try_failed",
        "released",
    ]
    ended = Transition.objects.get(attempt_uid=began.uid, reason="build_timeout")
    assert ended.actor == "convergence"
    assert Attempt.objects.get(pk=began.pk).failure_kind == FailureKind.SYSTEM


def aged(loop: Loop, cell: FakeCell, phase: Phase, seconds: int) -> Job:
    """A job whose attempt has been in `phase` for so long."""
    job = loop.submit(name=phase)
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=phase))
    since = clock.now() - timedelta(seconds=seconds)
    Attempt.objects.filter(job=job).update(state_since=since)
    return job


@pytest.mark.parametrize(
    ("phase", "limit"), [(Phase.PULLING, 1800), (Phase.CREATING, 300), (Phase.CHECKING, 300)]
)
def test_each_phase_has_its_own_time_limit(
    loop: Loop, cell: FakeCell, phase: Phase, limit: int
) -> None:
    job = aged(loop, cell, phase, limit - 2)
    loop.converge()
    assert loop.states(job) == ["BUILDING"]
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=limit + 1))
    loop.converge()
    assert loop.states(job) == ["PENDING"]
    assert Task.objects.get(job=job).system_failure_count == 1


def test_preparing_phase_has_the_time_limit_of_the_whole_build(loop: Loop, cell: FakeCell) -> None:
    job = aged(loop, cell, Phase.PREPARING, 2_000)
    loop.converge()
    assert loop.states(job) == ["BUILDING"]
    whole = timedelta(seconds=1800 + 3 * 300)
    Attempt.objects.update(start_before=clock.now() - whole)
    loop.converge()
    assert loop.states(job) == ["PENDING"]
    assert Task.objects.get(job=job).system_failure_count == 1


def test_preparing_attempt_is_not_an_unanswered_order(loop: Loop, cell: FakeCell) -> None:
    job = aged(loop, cell, Phase.PREPARING, 90)
    Attempt.objects.update(start_before=clock.now() - timedelta(seconds=30))
    loop.converge()
    assert loop.states(job) == ["BUILDING"]


def test_hanging_creation_ends_an_at_most_once_task(loop: Loop, cell: FakeCell) -> None:
    job = loop.submit(delivery="at_most_once")
    loop.place()
    (attempt,) = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.BUILDING, phase=Phase.CREATING))
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=301))
    loop.converge()
    assert loop.states(job) == ["FAILED"]


def test_build_timeout_stays_a_system_failure_after_later_reports(
    loop: Loop, cell: FakeCell
) -> None:
    """The program fails, too, once the engine answers: the runner's state stays for the retry."""
    job = loop.submit()
    loop.place()
    (first,) = loop.attempts(job)
    facts = {"plugin_phase": "initializing", "plugin_state": {"key": "a"}}
    cell.report(AttemptReport(str(first.uid), 0, S.BUILDING, phase=Phase.CREATING, **facts))
    Attempt.objects.update(state_since=clock.now() - timedelta(seconds=301))
    loop.converge()
    cell.end(first, S.FAILED, failure_kind=FailureKind.USER, reason="spec", message="no such user")
    first.refresh_from_db()
    assert (first.reason, first.failure_kind, first.charged) == (
        "build_timeout",
        "system",
        "system",
    )
    assert first.released_at is not None
    Task.objects.update(not_before=None, avoid_cell_ids=None)
    loop.place()
    assert load_launch_context(Attempt.objects.get(number=2).uid).plugin_state == {"key": "a"}
