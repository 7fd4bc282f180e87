"""One-line mistakes that the simulation must find: where, what, and what they break."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old`, which stands once in `file`, becomes `new`. `within`: so many seeds suffice, namely
    the first that have all of `needs`, which a + joins: "drop", "delay" or "own" of the mixture of
    faults, a function of tests.simulation.faults, of .families, of .contests or of .extras, or
    "deaf": an exclusive task that ignores its stop signal, "serial": tasks that serialize, or
    "keys": jobs with concurrency keys.
    `scenario`: the test that must fail, in place of seeds, where the simulation has nothing that
    the mistake is about.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    needs: str = ""
    within: int = 40
    scenario: str = ""


_D, _C, _W = "controlplane/domain/", "controlplane/commands/", "workers/"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "loss-costs-failure",
        f"{_D}state/transitions.py",
        "        Event.CELL_LOST,\n"
        "        TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.PREEMPTION),",
        "        Event.CELL_LOST,\n"
        "        TransitionRule(S.WORKER_FAILED, S.WORKER_FAILED, RetryBudget.FAILURE),",
        "a lost cell is charged to the program",
        needs="crash_machine",
        within=60,
    ),
    Mutation(
        "one-retry-less",
        f"{_D}state/transitions.py",
        "        may_requeue = charge <= left",
        "        may_requeue = charge < left",
        "the last retry of a budget is never given",
    ),
    Mutation(
        "open-only-while-active",
        f"{_D}state/task_changes.py",
        "attempt_open=attempt is not None and (change is None or change.release is None),",
        "attempt_open=attempt is not None and outcome.task in TERMINAL,",
        "a task forgets the attempt that still holds it",
    ),
    Mutation(
        "killed-is-released",
        f"{_D}state/task_changes.py",
        "release=cause.release if ended else None,",
        'release=(cause.release or "confirmed") if ended else None,',
        "capacity is given back before the container is gone",
    ),
    Mutation(
        "job-does-not-end-its-tasks",
        f"{_D}state/job_rollup.py",
        "if job.ending_as is None and follows in TERMINAL and not all_ended:",
        "if job.ending_as is None and follows in TERMINAL and all_ended:",
        "tasks go on after their job is decided",
        scenario="tests/scenarios/test_s0_10_job_states.py"
        "::test_first_decisive_task_determines_the_job_state",
    ),
    Mutation(
        "groups-do-not-wait",
        f"{_D}state/job_rollup.py",
        "and dependencies_of(group.facts, by_name) is DependencyStatus.SATISFIED",
        "and dependencies_of(group.facts, by_name) is not DependencyStatus.IMPOSSIBLE",
        "a group starts before what it depends on",
    ),
    Mutation(
        "finished-too-soon",
        f"{_D}state/dependencies.py",
        "met = not is_open and succeeded >= group.min_available",
        "met = succeeded >= 1",
        "a group follows the first success of another",
    ),
    Mutation(
        "lost-cell-is-kept",
        f"{_C}cells/messages.py",
        "            and standing.state is not CellState.LOST",
        "            and standing.state",
        "a cell that was declared lost never receives the order to begin anew",
        needs="pause_cell",
        within=80,
    ),
    Mutation(
        "older-journal-believed",
        f"{_D}cells/registration.py",
        "if seq < known_seq:",
        "if seq < 0:",
        "a restored journal starts attempts twice",
        needs="roll_journal_back",
        within=300,
    ),
    Mutation(
        "duplicate-takes-over",
        f"{_D}cells/registration.py",
        "        if known_state is CellState.LOST:",
        "        if known_state:",
        "a second process of a name takes it from a living one",
        needs="add_duplicate",
        within=120,
    ),
    Mutation(
        "lease-of-one-beat",
        f"{_C}cells/messages.py",
        "seconds=settings.CELLRUN.lease_seconds * Policy().lease_factor",
        "seconds=settings.CELLRUN.heartbeat_seconds",
        "a cell is lost before its lease is over",
        needs="pause_cell",
        within=60,
    ),
    Mutation(
        "gaps-are-acknowledged",
        f"{_C}attempts/reports.py",
        "AND l.acked_seq >= i.first AND l.acked_seq < i.last",
        "AND l.acked_seq < i.last",
        "a lost report is acknowledged",
        needs="drop",
        within=60,
    ),
    Mutation(
        "charged-is-not-written",
        f"{_C}state/apply_sql.py",
        "charged = COALESCE(i.charged, a.charged),",
        "charged = a.charged,",
        "counters cannot be derived again",
    ),
    Mutation(
        "settled-at-once",
        f"{_C}state/apply_jobs.py",
        "finished - find_unreleased_jobs(sorted(finished)) if finished else finished",
        "finished",
        "a job is settled while containers of it run",
    ),
    Mutation(
        "counts-only-grow",
        f"{_D}state/group_counts.py",
        "delta[old] = delta.get(old, 0) - 1",
        "delta[old] = delta.get(old, 0) - 0",
        "a group counts a task in two states",
    ),
    Mutation(
        "leases-are-not-renewed",
        f"{_C}cells/messages.py",
        "FROM i WHERE l.cell_id = i.cell_id AND i.seq > l.heartbeat_seq",
        "FROM i WHERE l.cell_id = i.cell_id AND i.seq < l.heartbeat_seq",
        "every cell is lost after its first lease",
    ),
    Mutation(
        "inbox-acknowledges-unread",
        "controlplane/inbox/batches.py",
        "part.reported, part.acknowledgements, now=now, meanings=meanings",
        "part.reported[1:], part.acknowledgements, now=now, meanings=meanings",
        "the first report of a batch is acknowledged and not applied",
        within=100,
    ),
    Mutation(
        "inbox-ignores-probes",
        "controlplane/inbox/batches.py",
        "self._probes.update(found.probes)",
        "self._probes.clear()",
        "the control plane takes itself for unable to receive, and declares no cell lost",
        needs="wipe_journal",
        within=60,
    ),
    Mutation(
        "ended-capacity-is-free",
        "controlplane/queries/cells/capacity.py",
        "released_at IS NULL GROUP BY cell_id, group_id",
        "finished_at IS NULL GROUP BY cell_id, group_id",
        "a cell is over-committed while containers are stopped",
        needs="crash_machine",
        within=40,
    ),
    Mutation(
        "server-clock-ahead",
        f"{_W}agent/lease.py",
        "self._server_ahead = server_time - sent",
        "self._server_ahead = server_time",
        "every order seems to be late",
    ),
    Mutation(
        "lease-knows-every-answer",
        f"{_W}agent/lease.py",
        "sent = self._sent.get(seq)",
        "sent = next(iter(self._sent.values()), None)",
        "an answer to an earlier process is believed",
        needs="delay",
        within=60,
    ),
    Mutation(
        "done-is-forgotten",
        f"{_W}journal.py",
        "        self.done.add(uid, FinishedAttempt(until, never_created))",
        "        pass",
        "a late order starts what has ended",
        needs="delay",
        within=40,
    ),
    Mutation(
        "orders-are-not-kept",
        f"{_W}journal.py",
        '        self._write("take", ',
        '        ("take", ',
        "a restarted cell does not know its own containers",
        needs="kill_cell_now",
        within=40,
    ),
    Mutation(
        "ends-are-not-kept",
        f"{_W}journal.py",
        '        self._write("end", ',
        '        ("end", ',
        "a restarted cell reports that what ended has vanished",
        needs="kill_cell",
        within=40,
    ),
    Mutation(
        "moves-are-not-kept",
        f"{_W}agent/cell.py",
        "                self.journal.move(record)",
        "                pass",
        "a task that a cell moved, before it was killed, is charged",
        needs="departures",
        within=60,
    ),
    Mutation(
        "done-is-taken-again",
        f"{_W}agent/cell.py",
        "        known = self.journal.memory.done.get(uid)",
        "        known = None",
        "an order that comes again starts the attempt again",
        needs="delay",
        within=40,
    ),
    Mutation(
        "stop-before-run-is-forgotten",
        f"{_W}agent/cell.py",
        "                self.journal.finish(stop.uid, now.wall, never_created=never)",
        "                pass",
        "an order that comes after its stop is carried out",
        needs="delay",
        within=150,
    ),
    Mutation(
        "acknowledged-is-forgotten",
        f"{_W}agent/cell.py",
        "self.journal.finish(report.uid, found.run.start_before, never_created=never)",
        "self.journal.memory.attempts.pop(report.uid, None)",
        "an order that comes long after starts the attempt again",
        needs="delay",
        within=40,
    ),
    Mutation(
        "nothing-is-adopted",
        f"{_W}agent/cell.py",
        "        self.actions.adopt(launch)",
        "        pass",
        "a restarted cell never receives events of its containers again",
        needs="kill_cell_now",
        within=20,
    ),
    Mutation(
        "unacknowledged-is-safe",
        f"{_W}agent/reporting.py",
        "if report.seq <= self.acked]",
        "if report.seq <= sent_before]",
        "a report is forgotten before it was acknowledged",
        needs="drop",
        within=20,
    ),
    Mutation(
        "nothing-is-sent-again",
        f"{_W}agent/reporting.py",
        "if not missing or missing[0].seq > sent_before:",
        "if not missing or missing[0].seq < sent_before:",
        "a lost report is never repeated",
        needs="drop",
        within=20,
    ),
)
