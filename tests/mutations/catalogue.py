"""One-line mistakes that the simulation must find: where, what, and what they break."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old`, which stands once in `file`, becomes `new`. `within`: seeds from 1 that suffice."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    within: int = 40


_D, _C, _W = "controlplane/domain/", "controlplane/commands/", "workers/"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "loss-costs-failure",
        f"{_D}transitions.py",
        "(ACTIVE, Event.CELL_LOST, Rule(S.WORKER_FAILED, S.WORKER_FAILED, Budget.PREEMPTION)),",
        "(ACTIVE, Event.CELL_LOST, Rule(S.WORKER_FAILED, S.WORKER_FAILED, Budget.FAILURE)),",
        "a lost cell is charged to the program",
    ),
    Mutation(
        "one-retry-less",
        f"{_D}transitions.py",
        "task = S.PENDING if _used(counters, budget) <= _limit(limits, budget) else rule.task",
        "task = S.PENDING if _used(counters, budget) < _limit(limits, budget) else rule.task",
        "the last retry of a budget is never given",
    ),
    Mutation(
        "open-only-while-active",
        f"{_D}changes.py",
        "attempt_open=attempt is not None and (change is None or change.release is None),",
        "attempt_open=attempt is not None and outcome.task in TERMINAL,",
        "a task forgets the attempt that still holds it",
    ),
    Mutation(
        "killed-is-released",
        f"{_D}changes.py",
        "release=cause.release if ended else None,",
        'release=(cause.release or "confirmed") if ended else None,',
        "capacity is given back before the container is gone",
    ),
    Mutation(
        "job-does-not-end-its-tasks",
        f"{_D}jobs.py",
        "if job.ending_as is None and follows in TERMINAL and not all_ended:",
        "if job.ending_as is None and follows in TERMINAL and all_ended:",
        "tasks go on after their job is decided",
    ),
    Mutation(
        "groups-do-not-wait",
        f"{_D}jobs.py",
        "and dependencies_of(group.facts, by_name) is Standing.SATISFIED",
        "and dependencies_of(group.facts, by_name) is not Standing.IMPOSSIBLE",
        "a group starts before what it depends on",
    ),
    Mutation(
        "finished-too-soon",
        f"{_D}dependencies.py",
        "met = not is_open and succeeded >= group.min_available",
        "met = succeeded >= 1",
        "a group follows the first success of another",
    ),
    Mutation(
        "lost-incarnation-comes-back",
        f"{_D}registration.py",
        '    if known_state is CellState.LOST:\n        why = "this incarnation',
        '    if False:\n        why = "this incarnation',
        "a cell goes on with attempts that run elsewhere",
    ),
    Mutation(
        "older-journal-believed",
        f"{_D}registration.py",
        "if seq < known_seq:",
        "if seq < 0:",
        "a restored journal starts attempts twice",
        within=150,
    ),
    Mutation(
        "twin-takes-over",
        f"{_D}registration.py",
        "        if known_state is CellState.LOST:",
        "        if known_state:",
        "a second process of a name takes it from a living one",
        within=100,
    ),
    Mutation(
        "stops-are-not-repeated",
        f"{_D}sync.py",
        "return Answer(runs, (*ended.values(), *strangers))",
        "return Answer(runs, tuple(strangers))",
        "a lost stop is never said again",
    ),
    Mutation(
        "expired-is-released",
        f"{_D}convergence/overdue.py",
        "Cause(Reason.START_EXPIRED)",
        'Cause(Reason.START_EXPIRED, release="confirmed")',
        "an order that is late runs beside the next attempt",
        within=150,
    ),
    Mutation(
        "stall-is-death",
        "controlplane/ticks/convergence.py",
        "    if hold_until is None:",
        "    if True:",
        "cells are declared lost because we were away",
        within=150,
    ),
    Mutation(
        "two-ticks-are-silence",
        f"{_D}convergence/lost_cells.py",
        "and lease.expires_at <= now",
        "and True",
        "a cell is lost before its lease is over",
        within=150,
    ),
    Mutation(
        "gaps-are-acknowledged",
        f"{_C}reports.py",
        "AND l.acked_seq >= i.first AND l.acked_seq < i.last",
        "AND l.acked_seq < i.last",
        "a lost report is taken for heard",
    ),
    Mutation(
        "charged-is-not-written",
        f"{_C}statements.py",
        "charged = COALESCE(i.charged, a.charged),",
        "charged = a.charged,",
        "counters cannot be derived again",
    ),
    Mutation(
        "settled-at-once",
        f"{_C}effects.py",
        "if job_id in finished and job_id not in holding",
        "if job_id in finished",
        "a job is settled while containers of it run",
    ),
    Mutation(
        "counts-only-grow",
        f"{_C}effects.py",
        "shift[old] = shift.get(old, 0) - 1",
        "shift[old] = shift.get(old, 0) - 0",
        "a group counts a task in two states",
    ),
    Mutation(
        "leases-are-not-renewed",
        f"{_C}cell_messages.py",
        "expires_at = GREATEST(l.expires_at, %(until)s),",
        "expires_at = l.expires_at,",
        "every cell is lost after its first lease",
    ),
    Mutation(
        "inbox-drops-what-is-doubled",
        "controlplane/inbox/batches.py",
        "self._beats += found.beats",
        "self._beats = self._beats or found.beats[:1]",
        "of many heartbeats only one is answered",
        within=100,
    ),
    Mutation(
        "inbox-forgets-registrations",
        "controlplane/inbox/batches.py",
        "for item in found.registrations:",
        "for item in () if found.reported else found.registrations:",
        "a Register that comes with reports is lost",
        within=300,
    ),
    Mutation(
        "ended-capacity-is-free",
        "controlplane/queries/placement.py",
        "released_at IS NULL GROUP BY cell_id, group_id",
        "finished_at IS NULL GROUP BY cell_id, group_id",
        "a cell is over-committed while containers are stopped",
    ),
    Mutation(
        "server-clock-backwards",
        f"{_W}lease.py",
        "boot + self._server_ahead",
        "boot - self._server_ahead",
        "the cell cannot tell which orders are late",
    ),
    Mutation(
        "lease-knows-every-answer",
        f"{_W}lease.py",
        "sent = self._sent.get(seq)",
        "sent = next(iter(self._sent.values()), None)",
        "an answer to an earlier process is believed",
        within=300,
    ),
    Mutation(
        "done-is-forgotten",
        f"{_W}journal.py",
        "            memory.done[uid] = until",
        "            pass",
        "a late order starts what has ended",
        within=100,
    ),
    Mutation(
        "nothing-is-synced",
        f"{_W}journal.py",
        "        self._store.sync()",
        "        pass",
        "an order taken is forgotten by a crash",
        within=300,
    ),
    Mutation(
        "ends-are-not-kept",
        f"{_W}journal.py",
        '        self._write(["end", ',
        '        (["end", ',
        "a restarted cell says that what ended has vanished",
        within=100,
    ),
    Mutation(
        "torn-line-is-read",
        f"{_W}journal.py",
        "if intact < len(content):",
        "if intact < 0:",
        "what follows a torn line is lost at the next start",
        within=300,
    ),
    Mutation(
        "done-is-taken-again",
        f"{_W}cell.py",
        "        if uid in self.journal.memory.done:",
        "        if False:",
        "an order that comes again starts the attempt again",
        within=100,
    ),
    Mutation(
        "stop-before-run-is-forgotten",
        f"{_W}cell.py",
        "                self._remember_ended(stop.uid, now.wall)",
        "                pass",
        "an order that comes after its stop is carried out",
        within=300,
    ),
    Mutation(
        "acknowledged-is-forgotten",
        f"{_W}cell.py",
        "                self._remember_ended(report.uid, book.run.start_before)",
        "                self.journal.memory.attempts.pop(report.uid, None)",
        "an order that comes long after starts the attempt again",
        within=100,
    ),
    Mutation(
        "nothing-is-adopted",
        f"{_W}cell.py",
        "        self._actions.append(lambda: self.driver.adopt(launch))",
        "        pass",
        "a restarted cell never hears of its containers again",
    ),
    Mutation(
        "unheard-is-safe",
        f"{_W}reporting.py",
        "if report.seq <= self.acked]",
        "if report.seq <= sent_before]",
        "a report is forgotten before it was heard",
    ),
    Mutation(
        "nothing-is-said-again",
        f"{_W}reporting.py",
        "if not missing or missing[0].seq > sent_before:",
        "if not missing or missing[0].seq < sent_before:",
        "a lost report is never repeated",
    ),
)
