"""Random courses of the loop against the model: Hypothesis chooses what happens next.

Cells are fake and may report anything at any time. Time is virtual and moves a little with
each step, so that nothing of one step happens at the same instant as the next.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from controlplane import clock
from controlplane.commands.attempts.release import release_attempt
from controlplane.commands.jobs.cancel import cancel_job, cancel_task
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.state import attempt_uids
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.contract.messages.reports import AttemptReport, Reports
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import envelope, keys
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import JobsRefused, NameTaken
from controlplane.domain.state.transitions import Event
from controlplane.inbox.batches import Inbox
from controlplane.models import InboxProbe, TickState
from controlplane.outbox import transport
from controlplane.ticks import convergence
from tests.integration.loop import agreement
from tests.integration.loop.conftest import FakeCell, Loop, Wire
from tests.integration.loop.drawn import clarity, documents, numbers, words
from tests.integration.loop.model import Attempt, Job, SentReport, Task
from tests.integration.loop.model_ticks import Model
from tests.properties.restatement import ACTIVE, OPEN
from tests.simulation.world import empty_tables

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
STEP = timedelta(milliseconds=10)
MAX_JOBS, MAX_CELLS, MAX_ON_THE_WAY = 8, 3, 12


class Course(RuleBasedStateMachine):
    """One course of events."""

    def __init__(self) -> None:
        super().__init__()
        empty_tables()
        self.now, self.wire, self.model = BEGIN, Wire(), Model()
        clock.use(lambda: self.now)
        transport.use(self.wire)
        attempt_uids.use(Random(0).randbytes)
        create_default_tenancy()
        owner, _ = create_user(name="owner", password=None, is_operator=False)
        self.loop = Loop(owner, self.wire, Inbox(sync_seconds=0.0))
        self.cells: list[FakeCell] = []
        self.mute: set[str] = set()
        self.on_the_way: list[SentReport] = []
        self.ran: set[str] = set()
        self.is_sound = True
        self.model.now = self.now

    def teardown(self) -> None:
        """Whatever happened: heal everything, and see everything end."""
        try:
            if self.is_sound:  # or the failure to be shown would be another one
                self.heal()
        finally:
            clock.use(None)
            transport.use(None)
            attempt_uids.use(None)

    @invariant()
    def agrees(self) -> None:
        """Check that the database agrees with the model and violates no invariant."""
        self.is_sound = False
        agreement.check(self.model)
        self.is_sound = True

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=2), first=documents())
    def begin(self, sizes: list[int], first: dict[str, Any]) -> None:
        """There are cells, and something to do."""
        for size in sizes:
            self._add_cell(size)
        first.pop("existing_job_policy", None)
        agreement.learn(self.model, self.loop.submit(**first).pk)
        self.place()

    # -------------------------------------------------------------------------- cells

    @rule(what=st.sampled_from(["add", "lose", "return"]), number=numbers)
    def weather(self, what: str, number: int) -> None:
        """A cell comes, goes, or comes back."""
        match what:
            case "add" if len(self.cells) < MAX_CELLS:
                self._add_cell(1 + number % 4)
            case "lose":
                self._lose_cell(number)
            case "return":
                self._return_cell(number)

    def _add_cell(self, cpu: int) -> None:
        self._step()
        self.cells.append(self.loop.cell(f"cell-{len(self.cells)}", cpu=1000 * cpu))

    def _return_cell(self, number: int) -> None:
        """A cell process starts anew: it is taken for a new one if the old one was lost."""
        self._step()
        cell = self._cell(number)
        before, cell.incarnation = cell.incarnation, f"{cell.incarnation}+"
        if cell.register().verdict != "accepted":
            cell.incarnation = before
        self.mute.discard(cell.name)

    def _lose_cell(self, number: int) -> None:
        """A cell falls silent until it is given up."""
        self.mute.add(self._cell(number).name)
        for _ in range(4):
            self.advance(seconds=12)
            self.tick(is_deaf=False)

    @rule(seconds=st.sampled_from([1, 5, 15, 31, 61, 100, 310, 1_900]))
    def advance(self, seconds: int) -> None:
        self._step(seconds)
        for cell in self.cells:
            if cell.name not in self.mute:
                cell.beat()

    # ------------------------------------------------------------------------ reports

    @rule(talk=st.lists(st.tuples(numbers, words, clarity), min_size=1, max_size=4))
    def work(self, talk: list[tuple[int, dict[str, Any], bool]]) -> None:
        """Place what waits, and let cells report on some of their attempts."""
        self.place()
        for number, fields, is_gone in talk:
            if attempts := self._attempts(held=True):
                self._step()
                self._deliver([self._write(attempts, number, fields, is_gone)])

    @rule(number=numbers)
    def start(self, number: int) -> None:
        """What waits is placed, and all but some of it runs."""
        self.place()
        active = [a for a in self._attempts(held=True) if a.state is S.ASSIGNED]
        run = [a for n, a in enumerate(active) if n != number % (len(active) + 1)]
        self._deliver([self._write(run, n, {"state": S.RUNNING}, False) for n in range(len(run))])

    @rule(number=numbers, fields=words, is_gone=clarity, sender=st.integers(0, 5))
    @precondition(lambda self: self._attempts() and len(self.on_the_way) < MAX_ON_THE_WAY)
    def write(self, number: int, fields: dict[str, Any], is_gone: bool, sender: int) -> None:
        """Send a report of any attempt, perhaps by another cell; it may come late."""
        self._step()
        letter = self._write(self._attempts(), number, fields, is_gone)
        if sender == 0:
            cell = self._cell(number)
            letter = SentReport(self._cell_id(cell), cell.incarnation, letter.report)
        self.on_the_way.append(letter)

    @rule(chosen=st.lists(numbers, min_size=1, max_size=3), is_kept=st.booleans())
    @precondition(lambda self: self.on_the_way)
    def deliver(self, chosen: list[int], is_kept: bool) -> None:
        """Some of what is on the way arrives, in any order; perhaps it comes once more."""
        self._step()
        batch = [self.on_the_way[n % len(self.on_the_way)] for n in chosen]
        self._deliver(batch)
        if not is_kept:
            self.on_the_way = [letter for letter in self.on_the_way if letter not in batch]

    @rule()
    @precondition(lambda self: self._attempts())
    def obey(self) -> None:
        """Let every cell confirm its stops."""
        self._step()
        stopping = [a for a in self._attempts(held=True) if a.state not in ACTIVE]
        self._deliver([self._letter(a, {"state": S.KILLED, "gone": True}) for a in stopping])

    # ---------------------------------------------------------------------------- jobs

    @rule(
        body=documents(),
        others=st.one_of(st.just([]), st.just([]), st.lists(numbers, max_size=2)),
        until=st.sampled_from(["started", "succeeded", "finished", "finished"]),
        parent=st.one_of(st.none(), st.none(), numbers),
    )
    @precondition(lambda self: len(self.model.living()) < MAX_JOBS)
    def submit(
        self, body: dict[str, Any], others: list[int], until: str, parent: int | None
    ) -> None:
        self._step()
        there = [job for job in self.model.living() if not job.is_deleted]
        named = sorted({there[n % len(there)].id for n in others}) if there else []
        if named:
            body["depends_on"] = [{"job": job_id, "until": until} for job_id in named]
        chosen = there[parent % len(there)] if there and parent is not None else None
        if chosen is not None:
            body["parent"] = chosen.id
        same = [j for j in there if j.name == body["name"] and not j.has_ended]
        policy = body.get("existing_job_policy")
        is_taken = policy in ("error", "keep") and bool(same)
        takes_none = chosen is not None and (chosen.has_ended or chosen.ending_as is not None)
        try:
            job = self.loop.submit(**body)
        except NameTaken:
            assert policy == "error"
            assert same
        except JobsRefused:
            assert takes_none
            assert not is_taken
        else:
            assert policy != "error" or not same
            if is_taken:
                assert job.pk == same[-1].id
                return
            assert not takes_none
            agreement.learn(self.model, job.pk)
            replaced = same if policy == "replace" else []
            for old in replaced:
                self.model.end(old, S.KILLED)
            self.model.follow(replaced)

    @rule(
        what=st.sampled_from(["cancel_task", "cancel_job", "retry", "retry", "delete", "release"]),
        number=numbers,
    )
    def intervene(self, what: str, number: int) -> None:
        """Let a user or operator change a job."""
        if not self._jobs():
            return
        match what:
            case "cancel_task":
                self._cancel_task(number)
            case "cancel_job":
                self._cancel_job(number)
            case "retry" if len(self.model.living()) < MAX_JOBS:
                self._retry_job(number)
            case "delete":
                self._delete_job(number)
            case "release":
                self._release_as_operator(number)

    def _cancel_job(self, number: int) -> None:
        self._step()
        job = self._job(number)
        cancel_job(job_id=job.id, reason="", force=bool(number % 2), actor="me", now=self.now)
        self.model.end(job, S.KILLED)
        self.model.follow([job])
        self.model.end_open(job)

    def _cancel_task(self, number: int) -> None:
        self._step()
        tasks = [task for job in self._jobs() for task in job.tasks()]
        if not tasks:
            return
        task = tasks[number % len(tasks)]
        expects = task.state in OPEN
        done = self._try(
            lambda: cancel_task(task_id=task.id, reason="", force=False, actor="me", now=self.now)
        )
        assert done == expects
        if done:
            self.model.change(task, Event.KILLED)
            self.model.follow([task.group.job])

    def _delete_job(self, number: int) -> None:
        self._step()
        job = self._job(number)
        done = self._try(lambda: delete_job(job_id=job.id, actor="me", now=self.now))
        assert done == (job.has_ended and not self.model.is_read(job))
        job.is_deleted = done

    def _retry_job(self, number: int) -> None:
        self._step()
        job = self._job(number)
        made: list[int] = []
        done = self._try(
            lambda: made.append(
                retry_job(job_id=job.id, guid=None, actor="me", now=self.now).job_id
            )
        )
        if done:
            assert job.is_settled
            agreement.learn(self.model, made[0])
            wanted = sum(task.state is not S.SUCCEEDED for task in job.tasks())
            assert len(self.model.jobs[made[0]].tasks()) == wanted

    def _release_as_operator(self, number: int) -> None:
        self._step()
        found = self._attempts(held=True)
        if not found:
            return
        attempt = found[number % len(found)]
        done = self._try(lambda: self._release(attempt))
        assert done == (attempt.is_held and attempt.state not in ACTIVE)
        if done:
            task = self._task_of(attempt)
            attempt.release = "operator"
            self.model.follow([task.group.job])

    # --------------------------------------------------------------------------- ticks

    @rule()
    def place(self) -> None:
        self._step()
        agreement.learn_back_offs(self.model)
        self.loop.place()
        agreement.learn_placements(self.model, self.now)

    @rule(is_deaf=st.sampled_from([False, False, False, True]))
    def tick(self, is_deaf: bool) -> None:
        self._step()
        hold_until = self.now + timedelta(seconds=30) if is_deaf else None
        rest = {"finished_at": self.now, "started_at": None, "hold_until": hold_until}
        TickState.objects.update_or_create(name="convergence", defaults=rest)
        for shard in range(8):
            probed = {"sent_at": self.now, "delivered_until": self.now}
            InboxProbe.objects.update_or_create(shard=shard, defaults=probed)
        covered_at = agreement.covered_at()
        convergence.run(memory=self.loop.memory)
        cells = agreement.cells()
        self.model.tick(
            is_deaf=is_deaf,
            covered_at=covered_at,
            is_lost=lambda a: cells[a.cell_id] != (a.incarnation, False),
        )

    def heal(self) -> None:
        """Cells return with room enough, whatever runs succeeds: then all jobs are settled."""
        self._step()
        self.on_the_way.clear()
        self.cells.append(self.loop.cell("spare", cpu=64_000, memory=64_000))
        for _ in range(40):
            for number, cell in enumerate(self.cells):
                if cell.name in self.mute:
                    self._return_cell(number)
            self.advance(seconds=310)
            self.tick(is_deaf=False)
            held = self._attempts(held=True)
            for attempt in [a for a in held if a.is_held and self._is_strictly_held(a)]:
                self._release(attempt)
                attempt.release = "operator"
                self.model.follow([self._task_of(attempt).group.job])
            self.obey()
            self.place()
            good = [a for a in self._attempts(held=True) if a.state in ACTIVE]
            fields = {"state": S.SUCCEEDED, "exit_code": 0, "gone": True}
            self._deliver([self._letter(attempt, fields) for attempt in good])
            self.agrees()
            if all(job.is_settled for job in self.model.living()):
                return
        left = [job.id for job in self.model.living() if not job.is_settled]
        raise AssertionError(f"not settled, though everything was healed: jobs {left}")

    # -------------------------------------------------------------------------- inside

    def _step(self, seconds: int = 0) -> None:
        self.is_sound = False
        self.now += STEP + timedelta(seconds=seconds)
        self.model.now = self.now

    def _cell(self, number: int) -> FakeCell:
        return self.cells[number % len(self.cells)]

    def _cell_id(self, cell: FakeCell) -> int:
        return agreement.cell_ids()[cell.name]

    def _jobs(self) -> list[Job]:
        return [job for job in self.model.living() if not job.is_deleted]

    def _job(self, number: int) -> Job:
        return self._jobs()[number % len(self._jobs())]

    def _attempts(self, *, held: bool = False) -> list[Attempt]:
        found = [attempt for task in self.model.tasks() for attempt in task.attempts]
        return ([a for a in found if a.is_held] or found) if held else found

    def _task_of(self, attempt: Attempt) -> Task:
        found = self.model.find(attempt.uid)
        assert found is not None
        return found[0]

    def _is_strictly_held(self, attempt: Attempt) -> bool:
        return attempt.state not in ACTIVE and self._is_lost(attempt)

    def _is_lost(self, attempt: Attempt) -> bool:
        return agreement.cells()[attempt.cell_id] != (attempt.incarnation, False)

    def _release(self, attempt: Attempt) -> None:
        release_attempt(uid=UUID(attempt.uid), reason="", actor="me", now=self.now)

    def _write(
        self, among: list[Attempt], number: int, fields: dict[str, Any], is_gone: bool
    ) -> SentReport:
        attempt = among[number % len(among)]
        fields = {"gone": is_gone and fields["state"] not in OPEN, **fields}
        if fields["state"] is S.RUNNING:
            self.ran.add(attempt.uid)
        if attempt.uid in self.ran:
            fields.pop("never_created", None)  # that would be a lie
        return self._letter(attempt, fields)

    def _letter(self, attempt: Attempt, fields: dict[str, Any]) -> SentReport:
        names = {cell_id: name for name, cell_id in agreement.cell_ids().items()}
        cell = next(cell for cell in self.cells if cell.name == names[attempt.cell_id])
        cell.seq += 1
        report = AttemptReport(attempt.uid, cell.seq, **fields)
        return SentReport(attempt.cell_id, attempt.incarnation, report)

    def _deliver(self, batch: list[SentReport]) -> None:
        self.loop.inbox.apply([self._sealed(letter) for letter in batch])
        self.model.receive(batch)

    def _sealed(self, letter: SentReport) -> str:
        names = {cell_id: name for name, cell_id in agreement.cell_ids().items()}
        cell = next(cell for cell in self.cells if cell.name == names[letter.cell_id])
        return envelope.seal(
            keys.mac_key(cell.key, keys.TO_CONTROL),
            cell=cell.name,
            incarnation=letter.incarnation,
            seq=letter.report.seq,
            body=Reports(0, (letter.report,)).body(),
        )

    @staticmethod
    def _try(action: Callable[[], object]) -> bool:
        with suppress(Conflict):
            action()
            return True
        return False
