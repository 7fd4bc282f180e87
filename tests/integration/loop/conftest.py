"""The loop on PostgreSQL without processes: tests call what beat, the API and cells call."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.convergence.runner import Memory
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.pools import put_pool
from controlplane.contract.messages.orders import (
    Order,
    Orders,
    RegistrationResult,
    Sync,
    read_order,
)
from controlplane.contract.messages.reports import (
    AttemptReport,
    Heartbeat,
    HeldAttempt,
    Register,
    Reports,
)
from controlplane.contract.states import TaskState
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.queues import INBOX_QUEUES
from controlplane.domain.roles import Role
from controlplane.inbox.batches import Inbox
from controlplane.models import Attempt, InboxProbe, Job, Task, TickState
from controlplane.outbox import transport
from controlplane.spec import parse_job
from controlplane.ticks import convergence, placement
from tests.harness.bands import grant_production
from tests.harness.members import admit


@dataclass
class Wire:
    """The broker, replaced by a list: what left, by queue."""

    sent: list[tuple[str, str]] = field(default_factory=list)

    def push(self, messages: Sequence[tuple[str, str]]) -> None:
        self.sent += messages

    def claim(self, name: str, seconds: float) -> bool:
        return True

    def unclaim(self, name: str) -> None:
        pass

    def drop(self, queue: str) -> None:
        self.sent = [item for item in self.sent if item[0] != queue]


class FakeCell:
    """A cell whose messages the test writes."""

    def __init__(
        self, loop: "Loop", name: str, capacity: dict[str, int], pool: str | None = None
    ) -> None:
        self.loop, self.name, self.incarnation, self.seq = loop, name, "one", 0
        self.key = keys.decode_key(enroll_cell(name=name, pool=pool, now=clock.now()))
        self.capacity, self.last_report = capacity, 0

    def send(self, body: dict[str, Any]) -> None:
        self.seq += 1
        text = envelope.seal(
            keys.mac_key(self.key, keys.TO_CONTROL),
            cell=self.name,
            incarnation=self.incarnation,
            seq=self.seq,
            body=body,
        )
        self.loop.inbox.apply([text])

    def register(self) -> RegistrationResult:
        self.send(Register(self.capacity, drivers=("docker",), task_types=("container",)).body())
        answer = [o for o in self.orders() if isinstance(o, RegistrationResult)][-1]
        self.last_report = answer.register_seq
        return answer

    def report(self, *reports: AttemptReport, after: int | None = None) -> None:
        numbered = []
        for item in reports:
            self.seq += 1
            numbered.append(AttemptReport(**{**_fields(item), "seq": self.seq}))
        first = self.last_report if after is None else after
        self.send(Reports(first, tuple(numbered)).body())
        self.last_report = numbered[-1].seq

    def end(self, attempt: Attempt, state: TaskState, **facts: Any) -> None:
        self.report(AttemptReport(str(attempt.uid), 0, state, gone=True, **facts))

    def beat(self, *held: Attempt) -> Sync:
        listed = tuple(HeldAttempt(str(item.uid), TaskState(item.state)) for item in held)
        self.send(Heartbeat(listed).body())
        return [o for o in self.orders() if isinstance(o, Sync)][-1]

    def orders(self) -> list[Order]:
        queue = f"cell.{self.name}.{self.incarnation}"
        return [self._open(message) for name, message in self.loop.wire.sent if name == queue]

    def run_orders(self) -> list[str]:
        found = [order for order in self.orders() if isinstance(order, Orders)]
        return [run.uid for order in found for run in order.runs]

    def stop_orders(self) -> list[str]:
        found = [order for order in self.orders() if isinstance(order, Orders)]
        return [stop.uid for order in found for stop in order.stops]

    def _open(self, message: str) -> Order:
        (text,), _, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
        opened = envelope.parse(text)
        opened.check(keys.mac_key(self.key, keys.TO_CELL))
        return read_order(opened.content(keys.mac_key(self.key, keys.SEAL_ORDERS)))


def _fields(report: AttemptReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in AttemptReport.__dataclass_fields__}


@dataclass
class Loop:
    """The control plane in one process."""

    owner: User
    wire: Wire
    inbox: Inbox
    memory: Memory = field(default_factory=Memory)

    def cell(self, name: str = "cell-1", cpu: int = 4000, memory: int = 4096) -> FakeCell:
        cell = FakeCell(self, name, {"cpu_millis": cpu, "memory_mib": memory, "disk_mib": 10_000})
        assert cell.register().verdict == "accepted"
        return cell

    def submit(self, **body: Any) -> Job:
        body = {"name": "job", "image": "x", "command": ["true"], **body}
        if "groups" in body:
            body.pop("image")
            body.pop("command")
        else:
            body.setdefault("resources", {"cpu": 1, "memory": "64Mi"})
        (done,) = submit_jobs(
            specs=[parse_job(body)], bodies=[body], owner=self.owner, now=clock.now()
        )
        return Job.objects.get(pk=done.job_id)

    def place(self) -> None:
        placement.run()

    def converge(self) -> dict[str, int]:
        """A tick of the clock, whenever the last one was."""
        rest = {"finished_at": clock.now(), "started_at": None, "hold_until": None}
        TickState.objects.update_or_create(name="convergence", defaults=rest)
        for shard in range(len(INBOX_QUEUES)):
            probed = {"sent_at": clock.now(), "delivered_until": clock.now()}
            InboxProbe.objects.get_or_create(shard=shard, defaults=probed)
        for queue, message in list(self.wire.sent):
            if queue in INBOX_QUEUES:
                self.wire.sent.remove((queue, message))
        counts = convergence.run(memory=self.memory)
        self.record_probes()
        return counts

    def record_probes(self) -> None:
        for queue, message in list(self.wire.sent):
            if queue in INBOX_QUEUES:
                self.wire.sent.remove((queue, message))
                self.inbox.apply([json.loads(base64.b64decode(json.loads(message)["body"]))])

    def tasks(self, job: Job) -> list[Task]:
        return list(Task.objects.filter(job=job).order_by("group_id", "index"))

    def attempts(self, job: Job) -> list[Attempt]:
        return list(Attempt.objects.filter(job=job).order_by("task_id", "number"))

    def states(self, job: Job) -> list[str]:
        return [TaskState(task.state).name for task in self.tasks(job)]

    def state(self, job: Job) -> str:
        return TaskState(Job.objects.get(pk=job.pk).state).name


@pytest.fixture
def loop(transactional_db: None) -> Iterator[Loop]:
    create_default_tenancy()
    grant_production()
    owner, _ = create_user(name="owner", password=None, is_operator=False)
    admit(owner, Role.SUBMITTER)
    wire = Wire()
    transport.use(wire)
    yield Loop(owner, wire, Inbox(sync_seconds=0.0))
    transport.use(None)


@pytest.fixture
def many_slots(loop: Loop) -> None:
    """Let a cell prepare as many attempts at once as a test of other rules places."""
    put_pool(name="default", changes={"max_building_per_cell": 1000})
