"""What must be true at every step, and at the end; beyond the rows it sees the engines."""

from collections import Counter
from uuid import UUID

from django.conf import settings

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.state.states import ReleaseKind
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import decoded, rows
from tests.simulation.alone import check_alone
from tests.simulation.cached import check_identical
from tests.simulation.ends import check_ends
from tests.simulation.kept import check_kept
from tests.simulation.keys import check_keys
from tests.simulation.machines import Machine
from tests.simulation.shares import check_evictions, check_shares
from tests.simulation.world import World

# Only the product writes to the database: what had to be repaired, it had written wrongly.
_NEVER_RAISED = ["job_skipped", "repaired", "rule_failed"]


class Violated(AssertionError):
    """Something is not as it must always be."""


def check_step(world: World) -> None:
    """The invariants over the rows, and the engines against them."""
    violations = [str(violation) for violation in check_all()]
    violations += check_engines(world.machines)
    violations += _requests(world)
    violations += _unknown_containers(world)
    violations += world.wrong
    violations += check_alone(world)
    violations += _lost_too_soon()
    violations += check_shares(world)
    violations += check_kept(world)
    violations += _lost_too_many(world)
    violations += world.callbacks.check() if world.callbacks is not None else []
    violations += world.interventions.check() if world.interventions is not None else []
    violations += world.schedules.wrong if world.schedules is not None else []
    violations += check_keys() if world.has_keys else []
    if violations:
        raise Violated("\n".join(violations))


def check_engines(machines: list[Machine]) -> list[str]:
    """No uid started twice; no container beyond its attempt's release, but where that is a risk."""
    starts: Counter[str] = Counter()
    forgotten: Counter[str] = Counter()
    for machine in machines:
        starts.update(machine.engine.starts)
        forgotten.update(machine.forgotten)
    found = [
        f"attempt {uid} was started {n} times"
        for uid, n in starts.items()
        if n > 1 + forgotten[uid]
    ]
    living = {
        UUID(life.launch.uid): machine.label for machine in machines for life in machine.living()
    }
    if not living:
        return found
    # Released because its cell was lost: then the cell was declared LOST while it had the attempt.
    released = rows(
        """
        SELECT a.uid, a.release_kind FROM controlplane_attempt a
        JOIN controlplane_cell c ON c.id = a.cell_id
        WHERE a.uid = ANY(%s) AND a.released_at IS NOT NULL AND NOT (
            a.release_kind = %s AND EXISTS (
                SELECT 1 FROM controlplane_alert l WHERE l.kind = 'cell_lost'
                AND l.subject = c.name AND l.raised_at BETWEEN a.created_at AND a.released_at))
        """,
        [list(living), ReleaseKind.CELL_LOST.value],
    )
    return found + [
        f"attempt {uid} is released ({kind}), but its container runs on {living[uid]}"
        for uid, kind in released
    ]


def _requests(world: World) -> list[str]:
    """By the engines: each container has the request with which its attempt was placed."""
    living = {
        UUID(life.launch.uid): dict(life.launch.spec.resources)
        for machine in world.machines
        for life in machine.living()
    }
    found = rows(
        """
        SELECT a.uid, COALESCE(a.resources, g.resources) FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id WHERE a.uid = ANY(%s)
        """,
        [list(living)],
    )
    return [
        f"attempt {uid} was placed with {decoded(resources)} and runs with {living[uid]}"
        for uid, resources in found
        if decoded(resources) != living[uid]
    ]


def check_end(world: World) -> None:
    """All is quiet: every job came to its end, and no row had to be skipped or repaired."""
    check_step(world)
    wrong = check_ends(world)
    for job in world.jobs:
        for group, text in job.results.items():
            wrong += _wrong_results(job.job_id, group, text)
    wrong += [
        f"put aside: {error}" for (error,) in rows("SELECT error FROM controlplane_deadletter")
    ]
    wrong += _started_too_early()
    wrong += check_identical()
    wrong += check_evictions(world)
    wrong += world.interventions.check_end() if world.interventions is not None else []
    wrong += _vanished_by_itself(world)
    if not world.are_cells_disturbed:
        wrong += _lost_without_cause()
    wrong += [
        f"alert {kind} {subject}: {text}"
        for kind, subject, text in rows(
            "SELECT kind, subject, text FROM controlplane_alert WHERE kind = ANY(%s)",
            [_NEVER_RAISED],
        )
    ]
    wrong += world.errors
    if wrong:
        raise Violated("\n".join(wrong))


def _unknown_containers(world: World) -> list[str]:
    """What runs though the rows of its job, which was deleted, are gone; but on a lost cell."""
    living = [seen for seen in world.witness.all() if seen.is_living]
    if not living:
        return []
    uids = [UUID(seen.uid) for seen in living]
    known = rows("SELECT uid FROM controlplane_attempt WHERE uid = ANY(%s)", [uids])
    names = rows("SELECT DISTINCT subject FROM controlplane_alert WHERE kind = 'cell_lost'")
    lost = {name for (name,) in names}
    return [
        f"attempt {seen.uid} runs on {seen.machine.label}, but its rows are gone"
        for seen in living
        if (UUID(seen.uid),) not in known and seen.machine.name not in lost
    ]


def _started_too_early() -> list[str]:
    """Tasks whose group waited for another one to end, but which were placed before it had."""
    found = rows(
        """
        SELECT DISTINCT g.job_id, g.name, f.name FROM controlplane_taskgroup g
        JOIN jsonb_to_recordset(g.depends_on) AS d("group" text, until text) ON true
        JOIN controlplane_taskgroup f ON f.job_id = g.job_id AND f.name = d."group"
        JOIN controlplane_attempt a ON a.group_id = g.id
        JOIN controlplane_task t ON t.group_id = f.id
        WHERE (d.until <> 'started' AND t.finished_at > a.created_at)
           OR (d.until = 'succeeded' AND t.state <> %s)
           OR (d.until = 'started' AND t.started_at > a.created_at)
        """,
        [int(S.SUCCEEDED)],
    )
    return [f"job {job_id}: {later} did not wait for {first}" for job_id, later, first in found]


def _vanished_by_itself(world: World) -> list[str]:
    """Containers that were started and not touched, but reported as vanished."""
    if world.are_journals_harmed:
        return []
    started = Counter[str]()
    for machine in world.machines:
        started.update(machine.engine.starts)
    found = rows(
        """
        SELECT a.uid, a.reason FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.reason IN ('container_vanished', 'stopped_outside', 'stopped_unasked', 'refused')
          AND NOT g.launch->'command' ? 'vanish'
        """
    )
    return [
        f"attempt {uid} is ended as {reason}, though its container was started and left alone"
        for uid, reason in found
        if started[str(uid)] and str(uid) not in world.harmed
    ]


def _lost_too_soon() -> list[str]:
    """A cell is lost a quarter later than its lease at the earliest (the reason has the time)."""
    found = rows(
        """
        SELECT c.name, l.raised_at FROM controlplane_cell c
        JOIN controlplane_alert l ON l.kind = 'cell_lost' AND l.subject = c.name
        WHERE c.state = 'LOST' AND l.cleared_at IS NULL AND l.raised_at < make_interval(secs => %s)
            + substring(c.state_reason FROM 'silent since (.*)')::timestamptz
        """,
        [settings.CELLRUN.lease_seconds * Policy().lease_factor],
    )
    return [f"{name} was declared lost at {at}, before its lease was over" for name, at in found]


def _lost_too_many(world: World) -> list[str]:
    """Most of a pool is not lost at once without an operator's confirmation, if it needs one.

    Those whose machines are back under another incarnation are not in doubt, and drained cells are
    not counted. Checked at once, since cells are given other orders when they are lost.
    """
    found = rows(
        """
        SELECT p.name, l.raised_at, count(*)::int, max(l.id) FROM controlplane_alert l
        JOIN controlplane_cell c ON c.name = l.subject JOIN controlplane_pool p ON p.id = c.pool_id
        WHERE l.kind = 'cell_lost' AND p.mass_loss = 'hold' AND l.text NOT LIKE '%%replaced'
          AND (p.loss_confirmed_at IS NULL OR p.loss_confirmed_at > l.raised_at)
          AND c.ordered_state <> 'DRAINING' AND l.id > %s
        GROUP BY p.id, l.raised_at
        """,
        [world.losses_seen],
    )
    world.losses_seen = max([world.losses_seen, *(last for *_, last in found)])
    wrong = []
    for name, at, number, _ in found:
        [(cells,)] = rows(
            """
            SELECT count(*) FROM controlplane_cell c JOIN controlplane_pool p ON p.id = c.pool_id
            WHERE p.name = %s AND c.ordered_state <> 'DRAINING'
            """,
            [name],
        )
        if number >= 3 and 2 * number > cells:
            wrong.append(f"{number} cells of pool {name} were lost at {at}")
    return wrong


def _lost_without_cause() -> list[str]:
    """Only the control plane itself stalled: no cell may pay for that."""
    found = rows("SELECT subject FROM controlplane_alert WHERE kind = 'cell_lost'")
    return [
        f"{name} was declared lost, but only the control plane had stalled" for (name,) in found
    ]


def _wrong_results(job_id: int | None, group: str, text: str) -> list[str]:
    found = rows(
        """
        SELECT t.id, CASE WHEN e.id IS NULL THEN a.result ELSE e.result END,
               CASE WHEN e.id IS NULL THEN a.exit_code ELSE 0 END
        FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
        LEFT JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id
        WHERE g.job_id = %s AND g.name = %s AND t.state = %s
        """,
        [job_id, group, int(S.SUCCEEDED)],
    )
    return [
        f"task {task_id} SUCCEEDED with exit code {code} and result {result!r}"
        for task_id, result, code in found
        if (result, code) != (text, 0)
    ]
