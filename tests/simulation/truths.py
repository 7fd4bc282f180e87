"""What must be true in a simulation at every step, and at its end; beyond the rows it sees the engines."""

from collections import Counter
from uuid import UUID

from controlplane.contract.states import TaskState as S
from controlplane.domain.states import ReleaseKind
from controlplane.queries.invariants import check_all
from controlplane.queries.sql import rows
from tests.simulation.machines import Machine
from tests.simulation.world import World

_RISKY = {ReleaseKind.CELL_LOST, ReleaseKind.OPERATOR}


class Violated(AssertionError):
    """Something is not as it must always be."""


def check_step(world: World) -> None:
    """The invariants over the rows, and the engines against them."""
    violations = [str(violation) for violation in check_all()]
    violations += check_engines(world.machines)
    if violations:
        raise Violated("\n".join(violations))


def check_engines(machines: list[Machine]) -> list[str]:
    """No uid started twice; no container beyond its attempt's release, but where that is a risk."""
    starts: Counter[str] = Counter()
    for machine in machines:
        starts.update(machine.engine.starts)
    found = [f"attempt {uid} was started {n} times" for uid, n in starts.items() if n > 1]
    living = {
        UUID(life.launch.uid): machine.label for machine in machines for life in machine.living()
    }
    if not living:
        return found
    released = rows(
        "SELECT uid, release_kind FROM controlplane_attempt"
        " WHERE uid = ANY(%s) AND released_at IS NOT NULL",
        [list(living)],
    )
    return found + [
        f"attempt {uid} is released ({kind}), but its container runs on {living[uid]}"
        for uid, kind in released
        if kind not in _RISKY
    ]


def check_end(world: World) -> None:
    """All is quiet: every job came to what it should, and nobody had to put anything aside."""
    check_step(world)
    wrong = []
    for job in world.jobs:
        ((state, reason),) = rows(
            "SELECT state, failure_reason FROM controlplane_job WHERE id = %s", [job.job_id]
        )
        if job.expected and S(state) not in job.expected:
            expected = ", ".join(sorted(item.name for item in job.expected))
            wrong.append(f"job {job.job_id} is {S(state).name} ({reason}), expected {expected}")
        for group, text in job.results.items():
            wrong += _wrong_results(job.job_id, group, text)
    wrong += [
        f"put aside: {error}" for (error,) in rows("SELECT error FROM controlplane_deadletter")
    ]
    wrong += [
        f"alert {kind} {subject}: {text}"
        for kind, subject, text in rows(
            "SELECT kind, subject, text FROM controlplane_alert WHERE kind = 'job_skipped'"
        )
    ]
    wrong += world.errors
    if wrong:
        raise Violated("\n".join(wrong))


def _wrong_results(job_id: int | None, group: str, text: str) -> list[str]:
    found = rows(
        """
        SELECT t.id, a.result, a.exit_code FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_attempt a ON a.uid = t.attempt_uid
        WHERE g.job_id = %s AND g.name = %s AND t.state = %s
        """,
        [job_id, group, int(S.SUCCEEDED)],
    )
    return [
        f"task {task_id} SUCCEEDED with exit code {code} and result {result!r}"
        for task_id, result, code in found
        if (result, code) != (text, 0)
    ]
