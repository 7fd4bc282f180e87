"""Bulk operations: pages in convergence, within what their user may change, killed anywhere."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands import bulk as commands
from controlplane.commands.bulk import BulkActor, run_bulk_page, start_bulk, stop_bulk
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.holds import hold_job, hold_project, release_job
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.bulk import MAX_RUNNING, BulkAction, BulkFilter
from controlplane.domain.roles import Role
from controlplane.models import (
    Alert,
    ApiToken,
    AuditLine,
    BulkOperation,
    Domain,
    Hold,
    Job,
    Membership,
    Project,
)
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.jobs import bulk as queries
from controlplane.queries.jobs.bulk import load_actor, preview_bulk
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.tenancy.accounts import find_token_credential
from controlplane.spec import InvalidSpec
from tests.harness.members import admit
from tests.integration.loop.conftest import Loop
from tests.integration.loop.deaths import at_statement, work_until_death

EVERYTHING = BulkFilter(pool="default")


def actor(user: User, role: Role = Role.MANAGER) -> BulkActor:
    name = f"test-{ApiToken.objects.count()}"
    create_api_token(user=user, name=name, role=role, now=clock.now())
    credential = find_token_credential(ApiToken.objects.get(name=name).pk, now=clock.now())
    assert credential is not None
    return BulkActor(user, load_access(credential), credential.token_id)


def start(
    by: BulkActor, action: BulkAction = BulkAction.CANCEL, wanted: BulkFilter = EVERYTHING
) -> BulkOperation:
    found = start_bulk(action=action, wanted=wanted, reason="runaway", by=by, now=clock.now())
    return BulkOperation.objects.get(pk=found)


def lines(action: str) -> list[str]:
    found = AuditLine.objects.filter(action=action).order_by("pk")
    return list(found.values_list("subject", flat=True))


def submit(loop: Loop, number: int, **body: Any) -> list[Job]:
    return [loop.submit(name=f"sweep-{index}", **body) for index in range(number)]


def other_user(loop: Loop, role: Role) -> User:
    user, _ = create_user(name=f"other-{role}", password=None, is_operator=False)
    admit(user, role)
    return user


def as_owner(loop: Loop, owner: User, **body: Any) -> Job:
    """A job of another owner."""
    job = loop.submit(**body)
    Job.objects.filter(pk=job.pk).update(owner=owner)
    return job


def test_open_jobs_are_cancelled_with_the_reason_and_the_operation_is_done(loop: Loop) -> None:
    jobs = submit(loop, 3)
    operation = start(actor(loop.owner))
    assert operation.expected == 3
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.refused) == ("done", 3, 0)
    assert [loop.state(job) for job in jobs] == ["KILLED"] * 3
    reason = Job.objects.get(pk=jobs[0].pk).failure_reason
    assert f"bulk operation {operation.pk}: runaway" in reason
    assert lines("cancel.job") == [f"job {job.pk}" for job in jobs]
    assert set(AuditLine.objects.filter(action="cancel.job").values_list("actor")) == {("owner",)}
    assert lines("start.bulk_operation") == [f"bulk operation {operation.pk}"]
    assert check_all() == []


def test_no_job_of_the_set_starts_while_running_ones_are_cancelled(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PAGE", 1)
    cell = loop.cell(cpu=1000)
    # The oldest and the newest job run; those between them wait until one of these ends.
    first = loop.submit(name="first", resources={"cpu": 0.5})
    loop.place()
    waiting = [loop.submit(name=f"waits-{it}", resources={"cpu": 0.5}) for it in range(3)]
    order: Any = {"reason": "test", "role": Role.MANAGER, "actor": "owner", "now": clock.now()}
    for job in waiting:
        hold_job(job_id=job.pk, **order)
    newest = loop.submit(name="newest", resources={"cpu": 0.5})
    loop.place()
    for job in waiting:
        release_job(job_id=job.pk, **order)
    loop.place()
    running = [*loop.attempts(first), *loop.attempts(newest)]
    assert len(running) == 2
    for attempt in running:
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    operation = start(actor(loop.owner))
    while not operation.ended_at:
        run_bulk_page(operation.pk, now=clock.now(), is_over=lambda: False)
        for attempt in running:
            attempt.refresh_from_db()
            if attempt.stop_reason and not attempt.released_at:
                cell.end(attempt, S.KILLED)
        loop.place()
        operation.refresh_from_db()
    assert [loop.attempts(job) for job in waiting] == [[]] * 3
    assert (operation.done, operation.refused) == (5, 0)
    assert lines("cancel.job") == [f"job {job.pk}" for job in (*waiting, first, newest)]
    assert check_all() == []


def test_a_submitter_reaches_only_own_jobs(loop: Loop) -> None:
    own = loop.submit()
    foreign = as_owner(loop, other_user(loop, Role.SUBMITTER))
    by = actor(loop.owner)
    preview = preview_bulk(BulkAction.CANCEL, EVERYTHING, access=by.access)
    assert (preview.count, [job["id"] for job in preview.sample]) == (1, [own.pk])
    operation = start(by)
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("done", 1)
    assert (loop.state(own), loop.state(foreign)) == ("KILLED", "PENDING")


def test_a_manager_reaches_jobs_of_others_in_the_own_project_only(loop: Loop) -> None:
    lab = Project.objects.create(domain=Domain.objects.get(name="default"), name="lab")
    user, _ = create_user(name="mia", password=None, is_operator=False)
    admit(user, Role.MANAGER, "lab")
    inside, outside = loop.submit(project="lab"), loop.submit()
    by = actor(user)
    assert preview_bulk(BulkAction.CANCEL, EVERYTHING, access=by.access).count == 1
    start(by)
    loop.converge()
    assert (loop.state(inside), loop.state(outside)) == ("KILLED", "PENDING")
    with pytest.raises(NotFound, match="default/default"):
        start(by, wanted=BulkFilter(project="default/default"))
    assert lab.jobs.count() == 1


def test_a_token_limits_the_operation_after_its_start_too(loop: Loop) -> None:
    jobs = submit(loop, 2)
    by = actor(loop.owner)
    operation = start(by)
    Membership.objects.filter(user=loop.owner).update(role=Role.VIEWER)
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done) == ("done", 0)
    again = start(actor(other_user(loop, Role.MANAGER)))
    ApiToken.objects.filter(pk=again.token_id).delete()
    loop.converge()
    again.refresh_from_db()
    assert (again.state, again.done) == ("stopped", 0)
    assert again.ended_because == "the token or the user that started it is not valid any more"
    assert [loop.state(job) for job in jobs] == ["PENDING"] * 2


def test_an_operation_of_the_admin_ends_with_the_permission_of_its_user(loop: Loop) -> None:
    job = loop.submit()
    user = User.objects.create_superuser("olga")
    operation = start(BulkActor(user, actor(user, Role.OPERATOR).access))
    assert load_actor(operation, now=clock.now()) is not None
    User.objects.filter(pk=user.pk).update(is_superuser=False)
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, loop.state(job)) == ("stopped", "PENDING")


def test_jobs_after_the_start_and_those_that_do_not_match_remain(loop: Loop) -> None:
    first, other = loop.submit(name="sweep", labels={"team": "a"}), loop.submit(name="other")
    labelled = loop.submit(name="sweep", labels={"team": "b"})
    start(actor(loop.owner), wanted=BulkFilter(name="sweep", labels={"team": "a"}))
    later = loop.submit(name="sweep", labels={"team": "a"})
    loop.converge()
    found = [loop.state(job) for job in (first, other, labelled, later)]
    assert found == ["KILLED", "PENDING", "PENDING", "PENDING"]


def test_hold_retry_and_delete_act_on_the_jobs_to_which_they_apply(loop: Loop) -> None:
    by = actor(loop.owner)
    held, waiting = submit(loop, 2)
    start(by, BulkAction.HOLD)
    loop.converge()
    assert set(Hold.objects.values_list("job_id", flat=True)) == {held.pk, waiting.pk}
    with pytest.raises(Conflict, match="no job to hold"):
        start(by, BulkAction.HOLD)

    cancel_job(job_id=held.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    retry = start(by, BulkAction.RETRY)
    assert retry.expected == 1
    loop.converge()
    [new] = Job.objects.filter(retry_of=held)
    with pytest.raises(Conflict, match="no job to retry"):  # its retry has not ended
        start(by, BulkAction.RETRY)

    cancel_job(job_id=new.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    start(by, BulkAction.DELETE)
    loop.converge()
    # Convergence removes the rows of deleted jobs.
    assert list(Job.objects.filter(deleted_at=None)) == [waiting]
    assert loop.state(waiting) == "PENDING"


def test_release_acts_on_held_open_jobs_and_places_their_tasks_again(loop: Loop) -> None:
    by = actor(loop.owner)
    held, other, free = submit(loop, 3)
    for job in (held, other):
        hold_job(job_id=job.pk, reason="wait", role=Role.SUBMITTER, actor="owner", now=clock.now())
    cancel_job(job_id=other.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    assert loop.state(other) == "KILLED"
    operation = start(by, BulkAction.RELEASE)
    assert operation.expected == 1
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.refused) == ("done", 1, 0)
    assert not Job.objects.get(pk=held.pk).is_held
    assert not Hold.objects.filter(job=held, ended_at=None).exists()
    assert lines("release.job") == [f"job {held.pk}"]
    assert loop.state(free) == "PENDING"
    with pytest.raises(Conflict, match="no job to release"):
        start(by, BulkAction.RELEASE)
    assert check_all() == []


def test_release_leaves_what_a_higher_role_or_the_project_holds(loop: Loop) -> None:
    by = actor(loop.owner, Role.SUBMITTER)
    of_manager, own = submit(loop, 2)
    at = {"reason": "wait", "now": clock.now()}
    hold_job(job_id=of_manager.pk, role=Role.MANAGER, actor="mia", **at)
    hold_job(job_id=own.pk, role=Role.SUBMITTER, actor="owner", **at)
    hold_project(project_id=own.project_id, role=Role.MANAGER, actor="mia", **at)
    operation = start(by, BulkAction.RELEASE)
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.refused) == ("done", 1, 1)
    [refusal] = operation.refusals
    assert refusal["job"] == of_manager.pk
    assert "only the role manager may release it" in refusal["text"]
    held = Hold.objects.filter(ended_at=None).values_list("job_id", "project_id")
    assert set(held) == {(of_manager.pk, None), (None, own.project_id)}


def test_what_a_job_refuses_is_counted_with_the_text(loop: Loop) -> None:
    jobs = submit(loop, 2)
    for job in jobs:
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    operation = start(actor(loop.owner), BulkAction.RETRY)
    Project.objects.update(archived_at=clock.now())
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.refused) == ("done", 0, 2)
    assert [item["job"] for item in operation.refusals] == [job.pk for job in jobs]
    assert "archived" in operation.refusals[0]["text"]


def test_a_job_that_always_fails_does_not_stop_the_operation(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned, sound = submit(loop, 2)

    def cancel(*, job_id: int, **rest: Any) -> None:
        if job_id == poisoned.pk:
            raise RuntimeError("a row that cannot be read")
        cancel_job(job_id=job_id, **rest)

    monkeypatch.setattr(commands, "cancel_job", cancel)
    operation = start(actor(loop.owner))
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.done, operation.refused) == ("done", 1, 1)
    assert (loop.state(poisoned), loop.state(sound)) == ("PENDING", "KILLED")
    alert = Alert.objects.get(kind="job_skipped")
    assert alert.subject == f"bulk operation {operation.pk} of job {poisoned.pk}"


def test_a_tick_killed_at_any_statement_of_an_operation_processes_each_job_once(
    loop: Loop,
) -> None:
    jobs = submit(loop, 6)
    by = actor(loop.owner)
    operation = start(by)
    deaths = 0
    while not operation.ended_at:
        assert deaths < 100
        # A later statement each time, so that each death leaves some progress or none.
        doom = at_statement(2 + deaths % 4, "controlplane_bulkoperation")
        work_until_death(
            lambda: run_bulk_page(operation.pk, now=clock.now(), is_over=lambda: False), doom
        )
        deaths += 1
        operation.refresh_from_db()
    assert deaths > 6
    assert (operation.state, operation.done, operation.refused) == ("done", 6, 0)
    assert lines("cancel.job") == [f"job {job.pk}" for job in jobs]
    loop.converge()
    assert [loop.state(job) for job in jobs] == ["KILLED"] * 6
    assert check_all() == []


def test_a_page_that_another_tick_has_processed_is_passed_over(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(loop, 2)
    operation = start(actor(loop.owner))
    access = load_actor(operation, now=clock.now())
    assert access is not None
    stale = queries.find_page(operation, access, 50)
    monkeypatch.setattr(commands, "find_page", lambda *_: stale)
    for processed in (2, 0):
        found = run_bulk_page(operation.pk, now=clock.now(), is_over=lambda: False)
        assert found == processed
    operation.refresh_from_db()
    assert operation.done == 2
    assert len(lines("cancel.job")) == 2


def test_operations_take_turns(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAGE", 1)
    monkeypatch.setattr(queries, "SCANNED", 2)
    submit(loop, 4)
    by = actor(loop.owner)
    first = start(by, BulkAction.HOLD)
    second = start(by, BulkAction.CANCEL)
    for operation_id in queries.list_running():
        run_bulk_page(operation_id, now=clock.now(), is_over=lambda: False)
    assert list(BulkOperation.objects.order_by("pk").values_list("done", flat=True)) == [1, 1]
    run_bulk_page(first.pk, now=clock.now() + timedelta(seconds=1), is_over=lambda: False)
    assert queries.list_running() == [second.pk, first.pk]
    loop.converge()
    assert set(BulkOperation.objects.values_list("state", flat=True)) == {"done"}


def test_a_stopped_operation_processes_no_further_job(loop: Loop) -> None:
    [job] = submit(loop, 1)
    operation = start(actor(loop.owner))
    stop_bulk(operation_id=operation.pk, actor="olga", now=clock.now())
    loop.converge()
    operation.refresh_from_db()
    assert (operation.state, operation.ended_because) == ("stopped", "stopped by olga")
    assert loop.state(job) == "PENDING"
    assert lines("stop.bulk_operation") == [f"bulk operation {operation.pk}"]
    with pytest.raises(Conflict, match="has ended"):
        stop_bulk(operation_id=operation.pk, actor="olga", now=clock.now())


def test_a_preview_that_reads_the_newest_jobs_only_reports_that(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(loop, 3)
    access = actor(loop.owner).access
    assert preview_bulk(BulkAction.CANCEL, EVERYTHING, access=access).is_whole
    monkeypatch.setattr(queries, "MAX_COUNTED", 2)
    preview = preview_bulk(BulkAction.CANCEL, EVERYTHING, access=access)
    assert (preview.count, preview.is_whole) == (2, False)


def test_an_operation_on_jobs_older_than_those_that_are_counted_starts(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_COUNTED", 2)
    old = loop.submit(labels={"team": "a"})
    submit(loop, 2)
    by, wanted = actor(loop.owner), BulkFilter(labels={"team": "a"})
    preview = preview_bulk(BulkAction.CANCEL, wanted, access=by.access)
    assert (preview.count, preview.is_whole) == (0, False)
    start(by, wanted=wanted)
    loop.converge()
    assert loop.state(old) == "KILLED"


def test_a_filter_needs_a_field_and_states_to_which_the_action_applies(loop: Loop) -> None:
    submit(loop, 1)
    by = actor(loop.owner)
    with pytest.raises(InvalidSpec, match="must have a project, a pool, a name or a label"):
        start(by, wanted=BulkFilter(states=[S.PENDING]))
    with pytest.raises(InvalidSpec, match=r"filter\.states: must have one of PENDING, RUNNING"):
        start(by, wanted=BulkFilter(pool="default", states=[S.SUCCEEDED]))
    with pytest.raises(InvalidSpec, match="reason: is required"):
        start_bulk(action=BulkAction.HOLD, wanted=EVERYTHING, reason=" ", by=by, now=clock.now())


def test_a_user_has_a_limited_number_of_running_operations(loop: Loop) -> None:
    submit(loop, 1)
    by = actor(loop.owner)
    for _ in range(MAX_RUNNING):
        start(by)
    with pytest.raises(Conflict, match=f"{MAX_RUNNING} bulk operations"):
        start(by)


def test_an_ended_operation_is_deleted_after_thirty_days(loop: Loop) -> None:
    submit(loop, 1)
    operation = start(actor(loop.owner))
    loop.converge()
    loop.converge()
    assert BulkOperation.objects.filter(pk=operation.pk).exists()
    old = clock.now() - timedelta(days=31)
    BulkOperation.objects.update(ended_at=old)
    loop.converge()
    assert not BulkOperation.objects.exists()
