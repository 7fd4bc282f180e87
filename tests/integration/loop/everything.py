"""A database in which every rule of convergence has work at once, and how to have it again."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from controlplane import clock
from controlplane.commands.jobs import cancel
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.jobs.bulk import BulkFilter
from controlplane.domain.roles import Role
from controlplane.models import (
    Alert,
    ApiToken,
    Attempt,
    BulkOperation,
    CacheEntry,
    Callback,
    Cell,
    CellLease,
    ExecSession,
    ImageFailure,
    InboxProbe,
    Job,
    OneOff,
    Project,
    Schedule,
    ScheduleFiring,
    StoredSize,
    Task,
    TaskGroup,
    TickRun,
    TickState,
    Walk,
)
from controlplane.queries.sql import execute, rows
from tests.integration.loop.conftest import FakeCell, Loop

TASK: dict[str, Any] = {"image": "x", "command": ["true"]}
SMALL = {"cpu": 0.1, "memory": "8Mi"}
UNKNOWN_UID = UUID(int=404)


def ago(seconds: float) -> datetime:
    return clock.now() - timedelta(seconds=seconds)


class Planting:
    """Plants one thing after the other; each cell is the only READY one while it gets its work."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.jobs, self.cells = loop, dict[str, Job](), dict[str, FakeCell]()

    def all(self, monkeypatch: Any) -> dict[str, Job]:
        """Everything; the jobs by what is wrong with them."""
        monkeypatch.setattr(cancel, "PAGE", 3)
        self.failing_cell()
        self.late_tasks()
        self.waiting_jobs()
        self.cascades()
        self.cached()
        self.lost_cell()
        self.odd_cells()
        self.claims_and_rests()
        self.bulk_operation()
        self.schedules()
        Cell.objects.exclude(name__in=("full", "drained")).update(state="READY")
        now = clock.now()
        for name in ("convergence", "placement"):
            TickState.objects.update_or_create(
                name=name, defaults={"finished_at": now, "covered_at": now, "started_at": None}
            )
        for shard in range(len(INBOX_QUEUES)):
            InboxProbe.objects.create(shard=shard, sent_at=clock.now(), delivered_until=clock.now())
        return self.jobs

    def cell(self, name: str) -> FakeCell:
        Cell.objects.update(state="CORDONED")
        self.cells[name] = self.loop.cell(name, cpu=64_000, memory=64_000)
        return self.cells[name]

    def submit(self, name: str, **body: Any) -> Job:
        if "groups" not in body:
            body.setdefault("resources", SMALL)
        self.jobs[name] = self.loop.submit(name=name, **body)
        return self.jobs[name]

    def begin(self, name: str, state: S | None = S.RUNNING, **body: Any) -> list[Attempt]:
        """A job whose tasks are `state` on the only cell that takes work; None: ASSIGNED."""
        job = self.submit(name, **body)
        self.loop.place()
        cell = list(self.cells.values())[-1]
        if state is not None:
            attempts = self.loop.attempts(job)
            cell.report(*(AttemptReport(str(attempt.uid), 0, state) for attempt in attempts))
        return self.loop.attempts(job)

    def failing_cell(self) -> None:
        cell = self.cell("failing")
        for number in range(3):
            body = {"image": f"x:{number}", "retries": {"system": 0}, "max_task_failures": 9}
            for attempt in self.begin(f"failed-{number}", None, replicas=4, **body):
                cell.end(attempt, S.FAILED, failure_kind=FailureKind.SYSTEM, reason="engine")

    def late_tasks(self) -> None:
        self.cell("slow")
        self.begin("unanswered", None)
        self.begin("stuck-build", S.BUILDING, retries={"system": 2})
        [overrun] = self.begin("overrun", timeout_seconds=5)
        [stopping] = self.begin("stuck-stop")
        [unforced] = self.begin("unconfirmed-stop")
        for ended in (stopping, unforced):
            cancel_job(job_id=ended.job_id, reason="", force=False, actor="me", now=clock.now())
        old = (stopping.uid, unforced.uid, overrun.uid)
        of = Attempt.objects.filter
        of(job=self.jobs["unanswered"]).update(start_before=ago(1))
        of(job=self.jobs["stuck-build"]).update(state_since=ago(9_000), phase="pulling")
        of(uid__in=old).update(created_at=ago(601), started_at=ago(600))
        of(uid__in=(stopping.uid, unforced.uid)).update(finished_at=ago(599))
        of(uid=stopping.uid).update(stop_forced_at=ago(500))
        # Such a history was not possible before its group might start.
        late = (stopping.job_id, unforced.job_id, overrun.job_id)
        TaskGroup.objects.filter(job_id__in=late).update(startable_at=ago(602))

    def waiting_jobs(self) -> None:
        cell = self.cell("busy")
        ends = {"first": S.SUCCEEDED, "failed": S.FAILED, "expired": S.SUCCEEDED}
        for name, end in ends.items():
            [attempt] = self.begin(name)
            cell.end(attempt, end, exit_code=int(end is S.FAILED))
        for on in ("first", "failed"):
            self.submit(f"after-{on}", depends_on=[{"job": str(self.jobs[on].pk)}])
        groups = [
            {"name": "a", **TASK, "resources": SMALL},
            {"name": "b", "depends_on": [{"group": "a"}], "replicas": 2, **TASK},
        ]
        groups[1]["resources"] = SMALL
        [attempt] = self.begin("in-vain", groups=groups, max_task_failures=1)
        cell.end(attempt, S.FAILED, exit_code=1)

    def cascades(self) -> None:
        cell = self.cell("cascades")
        self.begin("parent", replicas=4)
        self.begin("child", parent=self.jobs["parent"].pk, replicas=2)
        cancel_job(
            job_id=self.jobs["parent"].pk, reason="", force=False, actor="me", now=clock.now()
        )
        lost, *_ = self.begin("gang", None, replicas=3, coscheduled=True)
        cell.end(lost, S.WORKER_FAILED, reason="vanished")

    def lost_cell(self) -> None:
        self.cell("gone")
        self.begin("lost", replicas=2)
        self.begin("exclusive", exclusive=True)
        self.begin("strict", exclusive="strict")
        CellLease.objects.filter(cell__name="gone").update(
            expires_at=ago(60), last_message_at=ago(90), silent_ticks=9
        )
        for kind, subject in (
            ("exclusive_held", f"attempt {UNKNOWN_UID}"),
            ("pool_skipped", "no-such-pool"),
        ):
            at = {"raised_at": ago(10**6), "last_raised_at": ago(10**6)}
            Alert.objects.create(kind=kind, subject=subject, text="held", **at)

    def odd_cells(self) -> None:
        self.cell("drained")
        self.begin("drained")
        Cell.objects.filter(name="drained").update(
            state="DRAINING", ordered_state="DRAINING", drain_deadline_at=ago(1)
        )
        full = self.cell("full")
        Cell.objects.filter(name=full.name).update(
            state="QUARANTINED",
            quarantined_for="failures",
            quarantined_until=ago(1),
            next_key_salt="00" * 16,
            next_key_until=ago(10**6),
        )
        self.submit("held-image", image="broken:1")
        for name in ("full", "drained", "cascades"):
            cell = Cell.objects.get(name=name)
            ImageFailure.objects.create(image="broken:1", cell=cell, failures=1, failed_at=ago(20))

    def cached(self) -> None:
        """A result to store, a task that waits for it, one to look up, and an unused entry."""
        cell = self.cell("cached")
        key = {"cache_key": "k@1", "cache_identity": UUID(int=9)}
        policy = {"version": "1", "key": "k", "scope": "project", "overwrite": False}
        [attempt] = self.begin("cache-store")
        cell.end(attempt, S.SUCCEEDED, exit_code=0, result="1")
        store, wait = self.jobs["cache-store"], self.submit("cache-wait")
        groups = TaskGroup.objects.filter(job__in=(store, wait))
        groups.update(cache={**policy, "serialize": True})
        Task.objects.filter(job=store).update(cache_status=CacheStatus.MISS, **key)
        waiting = {"cache_status": CacheStatus.WAITING, "cache_blocked": True}
        Task.objects.filter(job=wait).update(**waiting, **key)
        self.submit("cache-lookup", cache={"enabled": True})
        project = store.project
        CacheEntry.objects.create(
            identity=UUID(int=8), domain=project.domain, project=project, key="old@1", job_id=404,
            task_id=404, attempt_uid=UNKNOWN_UID, prefix="00/d/p/404/404/404", created_at=ago(60),
            used_at=ago(60), evicted_at=ago(1),
        )  # fmt: skip

    def bulk_operation(self) -> None:
        """Two jobs that an operation cancels."""
        owner, now = self.loop.owner, clock.now()
        for place in range(2):
            self.submit(f"bulk-{place}", labels={"set": "bulk"}, replicas=2)
        create_api_token(user=owner, name="bulk", role=Role.SUBMITTER, now=now)
        BulkOperation.objects.create(
            action="cancel",
            filter=BulkFilter(labels={"set": "bulk"}).as_document(),
            reason="runaway",
            user=owner,
            token_id=ApiToken.objects.get(name="bulk").pk,
            created_at=now,
            turn_at=now,
            expected=2,
            last_job_id=self.jobs["bulk-1"].pk,
        )

    def schedules(self) -> None:
        """One with a missed instant, and one with an instant in its queue that is refused.

        They start no job, whose ids would differ when the same state is restored.
        """
        document = {"name": "scheduled", **TASK, "pool": "removed"}
        for name in ("due", "queued"):
            Schedule.objects.create(
                project=Project.objects.get(name="default"),
                name=name,
                owner=self.loop.owner,
                cron="0 0 1 1 *",
                time_zone="UTC",
                catch_up="none",
                overlap="queue",
                job=document,
                next_at=ago(3_600) if name == "due" else ago(-3_600),
                created_at=ago(60),
                updated_at=ago(60),
            )
        ScheduleFiring.objects.create(
            schedule=Schedule.objects.get(name="queued"),
            at=ago(30),
            fired_at=ago(30),
            outcome="waiting",
        )

    def claims_and_rests(self) -> None:
        [task] = self.loop.tasks(self.jobs["first"])
        OneOff.objects.create(
            task=task,
            job_id=task.job_id,
            project_id=task.job.project_id,
            guid="guid",
            domain="d",
            claim=UNKNOWN_UID,
            claimed_at=ago(31),
        )
        ExecSession.objects.create(
            uid=UNKNOWN_UID,
            attempt=Attempt.objects.filter(released_at=None).latest("uid"),
            number=1,
            command=["sh"],
            actor="owner",
            requested_at=ago(31),
            client_seen_at=ago(31),
        )
        Callback.objects.create(
            job_id=task.job_id, task=task, owner_id=self.loop.owner.pk, url="http://x/", host="x",
            state="claimed", claim=UNKNOWN_UID, tries=1, due_at=ago(60), give_up_at=ago(-86_400),
            claimed_until=ago(1), created_at=ago(60),
        )  # fmt: skip
        StoredSize.objects.create(
            job_id=task.job_id, attempt_uid=UNKNOWN_UID, project=task.job.project, file_bytes=5
        )
        Job.objects.filter(pk=self.jobs["failed"].pk).update(settled_at=None, expires_at=None)
        Job.objects.filter(pk=self.jobs["expired"].pk).update(expires_at=ago(1))
        self.submit(
            "unplaced", scheduling_timeout_seconds=3600, resources={"cpu": 60, "memory": "8Mi"}
        )
        TaskGroup.objects.filter(job=self.jobs["unplaced"]).update(deadline_at=ago(1))
        cancelled = self.submit("miscounted")
        TaskGroup.objects.filter(job=cancelled).update(counts=[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        execute(
            """
            INSERT INTO controlplane_delivery (callback_id, number, began_at, ended_at, error)
            VALUES (40404, 1, %s, %s, '')
            """,
            [clock.now(), clock.now()],
        )
        long_ago = ago(10**9)
        TickRun.objects.create(name="old", started_at=long_ago, finished_at=long_ago)
        Walk.objects.all().delete()


TABLES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = 'public' AND table_name LIKE 'controlplane_%%' ORDER BY 1
    """


class Copy:
    """The whole database as it was, to be had again as often as it takes."""

    def __init__(self) -> None:
        self.tables = [name for (name,) in rows(TABLES)]
        execute("DROP SCHEMA IF EXISTS saved CASCADE")
        execute("CREATE SCHEMA saved")
        for name in self.tables:
            execute(f"CREATE TABLE saved.{name} AS TABLE public.{name}")
        self._back = "SET session_replication_role = replica;" + "".join(
            f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM saved.{name};"
            for name in self.tables
        )
        listed = " UNION ALL ".join(
            f"SELECT '{name}', md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {name} t"
            for name in self.tables
        )
        self._sum = f"SELECT md5(string_agg(s::text, '|')) FROM ({listed}) AS s"

    def restore(self) -> None:
        execute(self._back + "SET session_replication_role = DEFAULT")

    def fingerprint(self) -> str:
        """Of all rows there are."""
        return str(rows(self._sum)[0][0])

    def drop(self) -> None:
        execute("DROP SCHEMA saved CASCADE")
