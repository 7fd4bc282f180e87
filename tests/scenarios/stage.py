"""The stage of scenarios: fake cells whose reports the scenario writes, and virtual time."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.commands.attempts.reports import ReceivedReport, record_reports
from controlplane.commands.cells.probes import send_probes
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.pools import put_pool
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.reports import ReportSender
from controlplane.domain.roles import Role
from controlplane.domain.state.effects import Effects
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from controlplane.models import Alert, Attempt, Cell, Job, Pool, Task, TaskGroup, Transition
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks
from controlplane.queries.views.tasks import get_task
from tests.harness.members import admit
from tests.integration.loop.conftest import FakeCell, Loop

BEGIN = datetime(2031, 5, 4, 12, tzinfo=UTC)
SMALL = {"image": "x", "command": ["true"], "resources": {"cpu": 0.1, "memory": "64Mi"}}


@dataclass
class Stage(Loop):
    """The control plane in one process with virtual time; cells report unless made silent."""

    fake_cells: dict[str, FakeCell] = field(default_factory=dict)
    passed: timedelta = timedelta()
    readings: int = 0
    # Whether the scenario itself writes what the rules would not.
    is_tampered: bool = False

    def now(self) -> datetime:
        """Each reading is a little later than the one before it, as with a real clock."""
        self.readings += 1
        return BEGIN + self.passed + timedelta(microseconds=self.readings)

    def cell(self, name: str = "cell-1", cpu: int = 4000, memory: int = 4096) -> FakeCell:
        self.fake_cells[name] = super().cell(name, cpu, memory)
        return self.fake_cells[name]

    def wait(self, seconds: float, *silent: FakeCell) -> None:
        """Let time pass; every cell except the silent ones reports at its end."""
        self.passed += timedelta(seconds=seconds)
        for cell in self.fake_cells.values():
            if cell not in silent:
                cell.beat(*Attempt.objects.filter(cell__name=cell.name, released_at=None))
        send_probes(now=self.now())
        self.record_probes()

    def lose(self, cell: FakeCell) -> None:
        """The cell falls silent until it is given up."""
        for _ in range(6):
            self.wait(15, cell)
            self.converge()
        assert Cell.objects.get(name=cell.name).state == "LOST"

    def converge(self) -> dict[str, int]:
        """Run a tick of the clock. What it has to repair, the rules had written wrongly."""
        counts = super().converge()
        repaired = list(Alert.objects.filter(kind="repaired").values_list("subject", "text"))
        assert self.is_tampered or repaired == []
        return counts

    def settle(self) -> None:
        """Convergence until nothing is left to do."""
        for _ in range(4):
            self.converge()

    def submit_small(self, **body: Any) -> Job:
        """A job whose tasks all find room."""
        return self.submit(resources=SMALL["resources"], **body)

    def group(self, name: str, **more: Any) -> dict[str, Any]:
        """A small group."""
        return {"name": name, **SMALL, **more}

    def task(self, job: Job) -> Task:
        """The one task of the job."""
        return Task.objects.get(job=job)

    def last(self, job: Job) -> Attempt:
        """The newest attempt of the job's one task."""
        return Attempt.objects.filter(job=job).latest("number")

    def newest(self, job: Job) -> list[Attempt]:
        """Return the present attempt, or the last one, of each task that had one."""
        found = [task.attempt_uid for task in self.tasks(job) if task.attempt_uid]
        by_uid = Attempt.objects.in_bulk(found)
        return [by_uid[uid] for uid in found]

    def job(self, job: Job) -> Job:
        """The job as it is now."""
        return Job.objects.get(pk=job.pk)

    def placed(self, **body: Any) -> tuple[Job, Attempt]:
        """A job of one task, and its attempt."""
        job = self.submit_small(**body)
        self.place()
        return job, self.last(job)

    def running(self, **body: Any) -> tuple[Job, Attempt]:
        """A job of one task, which runs."""
        job, attempt = self.placed(**body)
        self.start(attempt)
        return job, attempt

    def fake_cell_of(self, attempt: Attempt) -> FakeCell:
        return self.fake_cells[Cell.objects.get(pk=attempt.cell_id).name]

    def start(self, *attempts: Attempt) -> None:
        """Let their cells report that their programs run."""
        for attempt in attempts:
            at = self.now().timestamp()
            self.fake_cell_of(attempt).report(
                AttemptReport(str(attempt.uid), 0, S.RUNNING, started_at=at)
            )

    def build(self, attempt: Attempt, **facts: Any) -> None:
        """Let its cell report that it prepares the container."""
        self.fake_cell_of(attempt).report(AttemptReport(str(attempt.uid), 0, S.BUILDING, **facts))

    def begin(self, attempt: Attempt, state: str) -> None:
        """Let its cell report BUILDING or RUNNING."""
        if state == "BUILDING":
            self.build(attempt)
        else:
            self.start(attempt)

    def end(self, attempt: Attempt, state: S, **facts: Any) -> None:
        """Let its cell report this end, and that the container is gone."""
        self.fake_cell_of(attempt).end(attempt, state, **facts)

    def succeed(self, *attempts: Attempt) -> None:
        for attempt in attempts:
            self.end(attempt, S.SUCCEEDED, exit_code=0)

    def fail(self, *attempts: Attempt) -> None:
        for attempt in attempts:
            self.end(attempt, S.FAILED, exit_code=1)

    def fail_after_start(self, *attempts: Attempt) -> None:
        """Let their cells report in one message that their programs ran and failed."""
        for attempt in attempts:
            at = self.now().timestamp()
            self.end(attempt, S.FAILED, exit_code=1, started_at=at)

    def fail_system(self, attempt: Attempt, **facts: Any) -> None:
        """Let its cell report a system failure."""
        self.end(attempt, S.FAILED, failure_kind="system", message="the disk is full", **facts)

    def vanish(self, *attempts: Attempt) -> None:
        """Let their cells report that the containers, which had run, have vanished."""
        for attempt in attempts:
            at = self.now().timestamp()
            self.end(attempt, S.FAILED, started_at=at, failure_kind="outside", reason="vanished")

    def refuse(self, attempt: Attempt, **facts: Any) -> None:
        self.end(attempt, S.WORKER_FAILED, reason="refused", message="no", **facts)

    def counters(self, job: Job) -> tuple[int, int, int]:
        """What the job's one task has used of the failure, preemption and system budgets."""
        task = self.task(job)
        return task.failure_count, task.preemption_count, task.system_failure_count

    def confirm(self, *attempts: Attempt) -> None:
        """Let their cells confirm the stops."""
        for attempt in attempts:
            self.end(attempt, S.KILLED, reason="stopped")

    def force(self, job: Job, event: Event, reason: Reason) -> None:
        """The event happens to each task of the job, without what causes it."""
        for task in self.tasks(job):
            self.force_task(task, event, reason)

    def force_task(self, task: Task, event: Event, reason: Reason) -> None:
        """The event, on the way on which everything happens to tasks."""

        def work() -> None:
            now, jobs = self.now(), lock_jobs([task.job_id])
            [facts] = load_facts_of_tasks([task.pk])
            change = change_task(facts, event, ChangeCause(reason), now=now)
            applied = apply(Effects([change]), jobs=jobs, now=now, actor="convergence")
            assert applied.changed == 1

        run_in_transaction(work)

    def receive(self, cell: FakeCell, report: AttemptReport) -> dict[str, int]:
        """One report, as the inbox records it; why it was ignored, if it was."""
        sender = ReportSender(Cell.objects.get(name=cell.name).pk, cell.incarnation)
        recorded = record_reports([ReceivedReport(sender, report)], [], now=self.now())
        return {why: count for why, count in recorded.ignored.items() if count}

    def history(self, job: Job) -> list[tuple[str, str, str]]:
        """(to, reason, actor) of each line of the job's tasks, oldest first."""
        found = Transition.objects.filter(job_id=job.pk, task_id__isnull=False).order_by("id")
        return [(S(row.to_state or 0).name, row.reason, row.actor) for row in found]

    def counts(self, job: Job) -> dict[str, dict[str, int]]:
        """Return the number of tasks by group and state, from the rows of the groups."""
        return {
            group.name: {S(n).name: count for n, count in enumerate(group.counts) if count}
            for group in TaskGroup.objects.filter(job=job).order_by("id")
        }

    def check(self) -> None:
        """Nothing that must always be true is violated, nor was, until it was put right."""
        assert check_all() == []
        assert not Alert.objects.filter(kind="repaired").exists()

    def cell_of(self, pool: str, name: str, cpu: int = 4000, **labels: str) -> FakeCell:
        """A cell of another pool, or with labels."""
        home, _ = Pool.objects.get_or_create(name=pool)
        made = self.cell(name, cpu=cpu)
        Cell.objects.filter(name=name).update(pool=home, labels=labels)
        return made

    def policy(self, pool: str = "default", **fields: Any) -> None:
        """An operator edits the pool."""
        put_pool(name=pool, changes=fields)

    def user(self, name: str) -> "Stage":
        """Return the same stage for another user."""
        owner, _ = create_user(name=name, password=None, is_operator=False)
        admit(owner, Role.SUBMITTER)
        return replace(self, owner=owner)

    def why(self, job: Job) -> dict[str, Any]:
        """Return the pending reason of the job's first group, as users see it."""
        task = Task.objects.filter(job=job, state=S.PENDING).order_by("id").first()
        assert task is not None
        found = get_task(task.pk, now=self.now())["pending_reason"]
        assert found is not None
        return dict(found)

    def cells(self, job: Job) -> list[str]:
        """Where its tasks are, in order; tasks that are nowhere are left out."""
        held = Attempt.objects.filter(job=job, released_at=None).order_by("task_id")
        return [str(name) for name in held.values_list("cell__name", flat=True)]
