"""The whole system in virtual time: machines, broker, control plane, submitters."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from random import Random
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import override_settings

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.state import attempt_uids
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.quotas import put_quota
from controlplane.contract.wire.keys import decode_key
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.models import Project
from controlplane.outbox import transport
from controlplane.queries.sql import rows
from tests.harness.bands import grant_production
from tests.simulation.bus import SimulatedBus
from tests.simulation.cached import faulty_store, results_to_store
from tests.simulation.callbacks import Callbacks
from tests.simulation.contests import choose_contests, draw_contests
from tests.simulation.control import ControlPlane
from tests.simulation.families import choose_families, draw_families, tree
from tests.simulation.interventions import Interventions
from tests.simulation.jobs import Submitted, draw_jobs
from tests.simulation.machines import Machine, Surroundings
from tests.simulation.one_offs import OneOffs
from tests.simulation.policies import (
    CONTENDER,
    FPGA,
    SECOND,
    ZONE,
    ZONES,
    Policies,
    draw_policies,
    draw_start_slots,
)
from tests.simulation.schedules import OWNER, Schedules, choose_begin
from tests.simulation.submitters import NAME, Submitters
from tests.simulation.timeline import Timeline
from tests.simulation.witness import Witness

TRACE_LINES = 200
# A system that is healed and has so long is quiet, or something is lost: the longest of our own
# patience is the back-off of five minutes, twice in a row.
QUIET_SECONDS = 1_500.0
POLL_SECONDS = 5.0
# What is kept for so long, or less, is gone before all is quiet.
SHORT_LIFE_SECONDS = 300

# Leases and their kin, in seconds: as installed, and short, which makes more of them pass.
_PROFILES: tuple[dict[str, float], ...] = (
    {},
    {"heartbeat_seconds": 3.0, "lease_seconds": 12.0, "start_seconds": 20.0, "sync_seconds": 0.5},
    {"heartbeat_seconds": 4.0, "start_seconds": 8.0},
)


class World:
    """Everything there is in one simulation. `elapsed` counts virtual seconds."""

    # Options of `python -m tests.simulation` beside the seed.
    options = ""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.timeline = Timeline(choose_begin(seed))
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.bus = SimulatedBus(self.timeline, self.rng)
        self.around = Surroundings(self.timeline, self.bus, self.rng, self.note)
        self.machines: list[Machine] = []
        self.witness = Witness(self.timeline)
        self.submitters: Submitters
        self.control: ControlPlane
        self.on_step: Callable[[], None] = lambda: None
        self.dirty = False
        self.errors: list[str] = []
        self.wrong: list[str] = []
        # What the faults did, for the truths that depend on it.
        self.are_cells_disturbed = False
        self.are_journals_harmed = False
        self.is_peaceful = False
        self.harmed: set[str] = set()
        self.policies = Policies()
        # The jobs for which others were evicted, and when last; up to which line of the history.
        self.evictors: dict[int, datetime] = {}
        self.evictions: set[tuple[int, datetime]] = set()
        self.evictions_seen = 0
        self.losses_seen = 0
        # Room that is kept, by task, cell and end, and since when it was seen.
        self.kept: dict[tuple[int, int, datetime], datetime] = {}
        # What some seeds have beside jobs (`extras`); up to which line deletions were checked.
        self.owners: dict[str, User] = {}
        self.one_offs: OneOffs | None = None
        self.callbacks: Callbacks | None = None
        self.interventions: Interventions | None = None
        self.schedules: Schedules | None = None
        self.has_keys = False
        self.expires = False
        self.healed_at: float | None = None
        self.audited = 0

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.timeline.elapsed:9.3f}  {text}")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of real clock, broker and chance, on an empty database."""
        profile: Any = self.draw_profile()
        empty_tables()
        clock.use(self.timeline.datetime)
        transport.use(self.bus)
        attempt_uids.use(self.rng.randbytes)
        try:
            with (
                override_settings(CELLRUN=settings.CELLRUN.model_copy(update=profile)),
                connection.execute_wrapper(self._watch),
                faulty_store(self.seed, lambda: self.is_healed),
                _errors_kept(self.errors),
            ):
                self._prepare()
                yield
        finally:
            clock.use(None)
            transport.use(None)
            attempt_uids.use(None)

    def draw_profile(self) -> Mapping[str, float]:
        """Leases and their kin, where they are not as installed."""
        return self.rng.choice(_PROFILES)

    def run(self, *, healed_at: float, heal: Callable[[], None]) -> None:
        """Step until `healed_at`, heal, and step on until nothing is left to do."""
        self._run_until(lambda: self.timeline.elapsed >= healed_at)
        self.note("-- everything is healed")
        self.healed_at = self.timeline.now
        heal()
        scanned_at = 0.0

        def is_quiet() -> bool:
            nonlocal scanned_at
            if self.timeline.now < scanned_at + POLL_SECONDS:
                return False
            scanned_at = self.timeline.now
            return not self.what_is_left()

        self._run_until(is_quiet, limit=healed_at + QUIET_SECONDS)
        left = self.what_is_left()
        assert not left, f"not quiet {QUIET_SECONDS:.0f} s after everything was healed: {left}"

    def what_is_left(self) -> list[str]:
        """What keeps the system from being quiet, in words."""
        left = self.submitters.what_is_left()
        if self.callbacks is not None:
            left += self.callbacks.what_is_left()
        if self.interventions is not None:
            left += self.interventions.what_is_left()
        if self.schedules is not None:
            left += self.schedules.what_is_left()
        if self.one_offs is not None:
            left += self.one_offs.what_is_left()
        found = rows(
            "SELECT id FROM controlplane_job WHERE ttl_seconds <= %s", [SHORT_LIFE_SECONDS]
        )
        left += [f"job {job_id}, which is not kept for long, is there" for (job_id,) in found]
        found = rows("SELECT id, name, state FROM controlplane_job WHERE settled_at IS NULL")
        left += [f"job {job_id} ({name}) is in state {state}" for job_id, name, state in found]
        found = rows("SELECT id FROM controlplane_job WHERE deleted_at IS NOT NULL")
        left += results_to_store()
        left += [f"rows of job {job_id}, which is deleted, are left" for (job_id,) in found]
        statement = "SELECT name, state, state_reason FROM controlplane_cell WHERE state <> 'READY'"
        left += [f"cell {name} is {state} ({reason})" for name, state, reason in rows(statement)]
        left += [
            f"a container of attempt {life.launch.uid} runs on {machine.label}"
            for machine in self.machines
            for life in machine.living()
        ]
        left += [
            f"{machine.label} still keeps attempt {uid}"
            for machine in self.machines
            if machine.process is not None
            for uid in machine.process.cell.journal.memory.attempts
        ]
        return left

    def add_machine(
        self,
        name: str,
        label: str,
        *,
        pool: str = "default",
        cpu: int | None = None,
    ) -> Machine:
        """A machine for the cell `name`."""
        key = decode_key(enroll_cell(name=name, pool=pool, now=self.timeline.datetime()))
        cpu = cpu or self.rng.choice([1000, 2000, 4000])
        capacity = {"cpu_millis": cpu, "memory_mib": 2048, "disk_mib": 1000}
        machine = Machine(
            self.around,
            name=name,
            label=label,
            key=key,
            capacity=capacity,
            pool=pool,
        )
        if draw_start_slots(self.seed) is not None:
            machine.offer_containers()
        self.machines.append(machine)
        self.witness.watch(machine)
        return machine

    @property
    def is_healed(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.healed_at is not None

    @property
    def jobs(self) -> list[Submitted]:
        """All jobs, submitted or not."""
        return self.submitters.jobs

    # ------------------------------------------------------------------ inside

    def _prepare(self) -> None:
        create_default_tenancy()
        grant_production()
        owners = self.owners
        owners[NAME], _ = create_user(name=NAME, password=None, is_operator=False)
        self.control = ControlPlane(self.around)
        self.bus.on_arrival = self._arrived
        self.submitters = Submitters(self.around, owners, self.furnish(owners))

    def furnish(self, owners: dict[str, User]) -> list[Submitted]:
        """Draw the machines and the jobs."""
        for number in range(self.rng.randint(2, 4)):
            machine = self.add_machine(f"cell-{number}", f"cell-{number}")
            self.timeline.after(self.rng.uniform(0.0, 3.0), machine.start)
        slots = draw_start_slots(self.seed)
        put_pool(name="default", changes={"max_building_per_cell": slots})
        jobs = [*draw_jobs(self.rng), *draw_families(self.seed)]
        if choose_contests(self.seed):
            owners[CONTENDER], _ = create_user(name=CONTENDER, password=None, is_operator=False)
            jobs += self._let_contend(owners)
        return jobs

    def _let_contend(self, owners: Mapping[str, User]) -> list[Submitted]:
        """Policies, what cells differ in, a second pool; and the jobs that contend."""
        self.policies = draw_policies(Random(f"policies of {self.seed}"))
        slots = draw_start_slots(self.seed)
        for name, fields in self.policies.pools.items():
            offered = dict(fields)
            if tree in choose_families(self.seed) and not fields["preemption"]:
                # At the head of a strict queue, a task as large as a cell would wait for endless
                # children of a tree, and their root, which must end them, behind it.
                offered["strict_fifo"] = False
            put_pool(name=name, changes={**offered, "max_building_per_cell": slots})
        project = Project.objects.get()
        keys = {ScopeKind.PROJECT: project.pk, ScopeKind.DOMAIN: project.domain_id}
        keys[ScopeKind.USER] = owners[CONTENDER].pk
        for kind, limits in self.policies.quotas.items():
            put_quota(scope=Scope(kind, keys[kind]), changes=limits)
        for machine in self.machines:
            zone = ZONES[0] if machine is self.machines[0] else self.rng.choice(ZONES)
            machine.offer(labels={ZONE: zone}, more=_rare(zone))
        for number in range(self.rng.randint(1, 2)):
            zone = ZONES[number]
            name = f"{SECOND}-{number}"
            machine = self.add_machine(name, name, pool=SECOND)
            machine.offer(labels={ZONE: zone}, more=_rare(zone))
            self.timeline.after(self.rng.uniform(0.0, 3.0), machine.start)
        return draw_contests(self.seed)

    def _arrived(self, queue: str) -> None:
        if queue.startswith("cell."):
            for machine in self.machines:
                machine.arrived(queue)
        else:
            self.control.arrived(queue)

    def _run_until(self, done: Callable[[], bool], limit: float = float("inf")) -> None:
        while not done() and self.timeline.elapsed < limit:
            self.timeline.step()
            self.on_step()

    def _watch(self, execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        """Notice what may have changed a row that invariants speak of."""
        if not self.dirty and not sql.startswith("SELECT") and _writes(sql):
            self.dirty = True
        return execute(sql, *args)


def _rare(zone: str) -> dict[str, int]:
    return {FPGA: 1} if zone == ZONES[0] else {}


_WATCHED = ("controlplane_task", "controlplane_attempt", "controlplane_job", '"controlplane_cell"')
_WRITING = ("UPDATE", "INSERT", "DELETE")


def _writes(sql: str) -> bool:
    return any(word in sql for word in _WRITING) and any(table in sql for table in _WATCHED)


def empty_tables() -> None:
    """Empty everything of ours and begin all numbers anew."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL cellrun.retention = 'on'")
        cursor.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'controlplane\\_%'")
        # Foreign keys are checked at commit: any order will do.
        for (table,) in cursor.fetchall():
            cursor.execute(f'DELETE FROM "{table}"')
        names = [NAME, CONTENDER, OWNER]
        cursor.execute("DELETE FROM auth_user WHERE username = ANY(%s)", [names])
        # The numbers of shapes are drawn from what they are, and that from their owners' numbers.
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('auth_user', 'id'),"
            " coalesce((SELECT max(id) FROM auth_user), 0) + 1, false)"
        )
        cursor.execute(
            "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)"
            " FROM pg_sequences WHERE sequencename LIKE 'controlplane\\_%'"
        )


@contextmanager
def _errors_kept(errors: list[str]) -> Iterator[None]:
    """Nothing of ours reaches the terminal; what production code logs as an error is kept."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = [_Keeper(errors)]
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


class _Keeper(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(f"logged: {record.getMessage()}")
