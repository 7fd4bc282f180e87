"""Rows for pages to show: jobs whose tasks are in every state, each with attempts and history."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import Group, User

from controlplane.commands.notifications.configure import RuleFields, put_address, put_rule
from controlplane.commands.tenancy.secrets import put_secret
from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs.bulk import BulkFilter
from controlplane.domain.state.states import (
    ACTIVE,
    TERMINAL,
    Band,
    CallbackOn,
    CallbackState,
    CellState,
    Reason,
    ReleaseKind,
)
from controlplane.models import (
    Alert,
    ApiToken,
    Attempt,
    AuditLine,
    BulkOperation,
    CacheEntry,
    Callback,
    Cell,
    CellLease,
    DeadLetter,
    Delivery,
    Domain,
    Job,
    Membership,
    NotificationEvent,
    NotificationMessage,
    NotificationRule,
    OidcIdentity,
    OneOff,
    Pool,
    Project,
    Quota,
    Schedule,
    ScheduleFiring,
    Shape,
    Task,
    TaskGroup,
    TickRun,
    TickState,
    Transition,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WHY_PENDING = "no cell has enough free capacity: cell-ready comes closest and lacks 1.5 of 2 cores"
_ENDS = {
    S.SUCCEEDED: Reason.SUCCEEDED,
    S.FAILED: Reason.EXIT_STATUS,
    S.KILLED: Reason.CANCELLED,
    S.WORKER_FAILED: Reason.CELL_LOST,
    S.PREEMPTED: Reason.PREEMPTED,
}


def make_installation() -> None:
    """One cell in every state, two pools, and one of everything else that has a page."""
    project = Project.objects.create(domain=Domain.objects.create(name="default"), name="default")
    pool = Pool.objects.create(name="default")
    Pool.objects.create(name="gpu")
    for state in CellState:
        cell = Cell.objects.create(
            name=f"cell-{state.lower()}",
            pool=pool,
            state=state,
            incarnation=f"incarnation-{state}",
            capacity={"cpu_millis": 2000, "memory_mib": 2048},
            drivers=["docker"],
            enrolled_at=NOW,
            key_salt="5a17",
        )
        if state is not CellState.LOST:
            CellLease.objects.create(
                cell=cell, incarnation=cell.incarnation, last_message_at=NOW, expires_at=NOW
            )
    run = {
        "name": "placement",
        "started_at": NOW,
        "finished_at": NOW,
        "counts": {"placed": 1},
        "phases": {"passes": 40, "reasons": 2},
        "lag_seconds": 1.5,
    }
    TickState.objects.create(**run)
    TickRun.objects.create(**run)
    AuditLine.objects.create(
        at=NOW, actor="ann", action="deleted", subject="job 1 old", text="asked for"
    )
    Alert.objects.create(
        kind="mass_loss", subject="default", text="5 of 8", raised_at=NOW, last_raised_at=NOW
    )
    DeadLetter.objects.create(at=NOW, source="inbox.3", error="Malformed", body="<script>alert(1)")
    owner = User.objects.create_user("ann")
    ApiToken.objects.create(
        user=owner, name="laptop", prefix="cr_12345", digest="d" * 64, created_at=NOW
    )
    OidcIdentity.objects.create(
        user=owner, issuer="https://login.example.org", subject="s-1", created_at=NOW
    )
    group = Group.objects.create(name="night-shift")
    owner.groups.add(group)
    Membership.objects.create(group=group, project=project, role="viewer", created_at=NOW)
    Quota.objects.create(user=owner, resources={"cpu_millis": 4000}, running_tasks=40)
    put_secret(project_id=project.pk, name="token", value=b"hunter2", writer=owner, now=NOW)
    make_notifications()
    make_schedule(project, owner)
    job = make_job(project, pool, owner, states=list(S))
    make_callbacks(job)
    make_cache_entry(Task.objects.get(job=job, state=S.SUCCEEDED))
    BulkOperation.objects.create(
        action="cancel",
        filter=BulkFilter(name="sweep", labels={"team": "a"}).as_document(),
        reason="wrong image",
        user=owner,
        created_at=NOW,
        turn_at=NOW,
        expected=40,
        done=12,
        refused=1,
        refusals=[{"job": job.pk, "text": "it has ended"}],
        after_job_id=job.pk,
        last_job_id=job.pk,
    )


def make_schedule(project: Project, owner: User) -> None:
    """A schedule with an instant that was skipped."""
    schedule = Schedule.objects.create(
        project=project,
        name="nightly",
        owner=owner,
        cron="30 2 * * *",
        time_zone="Europe/Berlin",
        catch_up="latest",
        overlap="skip",
        job={
            "name": "report",
            "image": "busybox",
            "command": ["true"],
            "allow_unsatisfiable": True,
        },
        next_at=NOW + timedelta(hours=12),
        created_at=NOW,
        updated_at=NOW,
    )
    ScheduleFiring.objects.create(
        schedule=schedule, at=NOW, fired_at=NOW, outcome="skipped", text="an earlier job runs"
    )


def make_notifications() -> None:
    """An address with a rule, of which a message is tried again and an event waits."""
    put_address(name="ops", url="json://ops:t0ps3cret@example.org", now=NOW)
    columns = {"about": "alerts", "kinds": ["mass_loss"]}
    put_rule(name="night", wanted=RuleFields("ops", columns), now=NOW)
    rule = NotificationRule.objects.get()
    NotificationMessage.objects.create(
        address_id=rule.address_id,
        rule=rule,
        title="Cellrun: 1 event (night)",
        body="raised: mass_loss default: 5 of 8",
        tries=2,
        due_at=NOW,
        give_up_at=NOW + timedelta(days=1),
        created_at=NOW,
        last_error="the service did not accept the message (500)",
    )
    NotificationEvent.objects.create(
        rule=rule, alert_id=1, is_critical=True, at=NOW, line="raised: mass_loss gpu: 3 of 4"
    )


def make_cache_entry(task: Task, key: str = "model:2031@1", **changes: Any) -> CacheEntry:
    """The entry that a task has populated, which has one output."""
    uri = f"/api/v1/attempts/{task.attempt_uid}/artifacts/model"
    fields = {
        "identity": uuid4(),
        "domain": task.job.project.domain,
        "project": task.job.project,
        "owner": task.job.owner,
        "key": key,
        "job_id": task.job_id,
        "task_id": task.pk,
        "attempt_uid": task.attempt_uid,
        "prefix": "00/default/default/x",
        "manifest_sha256": "0" * 64,
        "result": "42 words",
        "outputs": [{"name": "model", "size": 1536, "sha256": "ab" * 32, "uri": uri}],
        "size_bytes": 1544,
        "hits": 3,
        "created_at": NOW,
        "used_at": NOW,
    }
    return CacheEntry.objects.create(**fields | changes)


def make_job(project: Project, pool: Pool, owner: User, states: list[S]) -> Job:
    """A RUNNING job with one task in each of `states`."""
    job = Job.objects.create(
        project=project,
        owner=owner,
        pool=pool,
        name="sweep",
        state=S.RUNNING,
        min_available=len(states),
        spec={"name": "sweep", "command": ["</pre><script>alert(1)</script>"]},
        spec_digest="0" * 64,
        created_at=NOW,
        started_at=NOW,
    )
    counts = [0] * (max(S) + 1)
    for state in states:
        counts[state] += 1
    group = TaskGroup.objects.create(
        job=job,
        name="main",
        position=0,
        replicas=len(states),
        task_count=len(states),
        min_available=len(states),
        counts=counts,
        resources={"cpu_millis": 100, "memory_mib": 32},
        task_type="container",
        shape_id=_shape(project, pool, owner).pk,
        launch={"input": "x" * 1000},
        startable_at=NOW,
    )
    _history(job, None, None, S.PENDING, Reason.SUBMITTED)
    for index, state in enumerate(states):
        _make_task(job, group, index, state)
    return job


def make_callbacks(job: Job, guid: str = "guid-of-mine") -> None:
    """One callback in each state, two of them tried before, and a one-off task being resolved."""
    Job.objects.filter(pk=job.pk).update(
        callback_on=CallbackOn.TASK,
        callback_url="https://hook.example/x",
        is_one_off=True,
        guid=guid,
    )
    tasks = Task.objects.filter(job=job).order_by("id")
    for state, task in zip(CallbackState, tasks, strict=False):
        is_over = state in (CallbackState.DELIVERED, CallbackState.ABANDONED)
        is_claimed = state is CallbackState.CLAIMED
        callback = Callback.objects.create(
            job=job,
            task=task,
            owner_id=job.owner_id,
            url="https://hook.example/x",
            host="hook.example:443",
            state=state,
            tries=1,
            due_at=NOW,
            give_up_at=NOW + timedelta(days=1),
            claim=UUID(int=7) if is_claimed else None,
            claimed_until=NOW if is_claimed else None,
            created_at=NOW,
            ended_at=NOW if is_over else None,
            last_error="" if state is CallbackState.DELIVERED else "it answered 503",
        )
        Delivery.objects.create(
            callback=callback,
            number=1,
            began_at=NOW,
            ended_at=NOW + timedelta(seconds=2),
            status=200 if state is CallbackState.DELIVERED else 503,
            error="" if state is CallbackState.DELIVERED else "it answered 503",
        )
    OneOff.objects.create(
        task=Task.objects.filter(job=job, state=S.SUCCEEDED)[0],
        job=job,
        project_id=job.project_id,
        guid=guid,
        domain="cf-tasks",
        claim=UUID(int=9),
        claimed_at=NOW,
        claimed_by="nsync",
    )


def _shape(project: Project, pool: Pool, owner: User) -> Shape:
    """Return the shape of all tasks here, and what placement last found of them."""
    shape, _ = Shape.objects.get_or_create(
        id=7,
        defaults={
            "pool": pool,
            "band": Band.INTERACTIVE,
            "owner": owner,
            "project": project,
            "resources": {"cpu_millis": 100, "memory_mib": 32},
            "task_type": "container",
            "pending_reason": {"code": "insufficient_resources", "text": WHY_PENDING},
        },
    )
    return shape


def _make_task(job: Job, group: TaskGroup, index: int, state: S) -> None:
    ended = NOW + timedelta(seconds=63) if state in TERMINAL else None
    task = Task.objects.create(
        job=job,
        group=group,
        shape_id=group.shape_id,
        index=index,
        state=state,
        attempt_open=state in ACTIVE,
        updated_at=NOW,
        finished_at=ended,
        failure_reason="exit status 3" if state is S.FAILED else "",
    )
    if state in (S.PENDING, S.UNSCHEDULABLE):
        return
    uid = UUID(int=(1 << 100) + task.pk)
    _make_attempt(task, uid, 1, state, result="42 words" if state is S.SUCCEEDED else None).save()
    Task.objects.filter(pk=task.pk).update(attempt_number=1, attempt_uid=uid)
    _history(job, task, uid, S.ASSIGNED, Reason.PLACED, before=S.PENDING)
    if state in _ENDS:
        _history(job, task, uid, state, _ENDS[state], before=S.ASSIGNED)


def add_attempts(task: Task, states: list[S], **facts: Any) -> None:
    """Further attempts of a task, in `states`; the one that it had before was preempted."""
    before = Attempt.objects.filter(task=task, released_at=None)
    before.update(state=S.PREEMPTED, **_end(S.PREEMPTED))
    made = Attempt.objects.bulk_create(
        _make_attempt(task, uuid4(), number, state, **facts)
        for number, state in enumerate(states, start=task.attempt_number + 1)
    )
    task.attempt_number, task.attempt_uid = made[-1].number, made[-1].pk
    task.save(update_fields=["attempt_number", "attempt_uid"])


def _make_attempt(task: Task, uid: UUID, number: int, state: S, **facts: Any) -> Attempt:
    """An attempt that is not written yet."""
    cell = Cell.objects.get(pool=task.job.pool, state=CellState.READY)
    return Attempt(
        uid=uid,
        task=task,
        group_id=task.group_id,
        job_id=task.job_id,
        cell=cell,
        incarnation=cell.incarnation,
        number=number,
        state=state,
        phase="pulling" if state is S.BUILDING else "",
        progress=40 if state is S.BUILDING else None,
        start_before=NOW,
        created_at=NOW,
        state_since=NOW,
        started_at=NOW,
        **_end(state),
        **facts,
    )


def _end(state: S) -> dict[str, Any]:
    """What an attempt has that ended in the state; nothing of one that goes on."""
    if state in ACTIVE:
        return {}
    ended = NOW + timedelta(seconds=63)
    return {
        "exit_code": {S.SUCCEEDED: 0, S.FAILED: 3}.get(state),
        "reason": _ENDS[state],
        "finished_at": ended,
        "released_at": ended,
        "release_kind": ReleaseKind.CONFIRMED,
    }


def _history(
    job: Job, task: Task | None, uid: UUID | None, to: S, reason: Reason, before: S | None = None
) -> None:
    Transition.objects.create(
        job_id=job.pk,
        task_id=task.pk if task else None,
        attempt_uid=uid,
        from_state=before,
        to_state=to,
        attempt_state=to if uid else None,
        reason=reason,
        actor="ann",
        at=NOW,
    )
