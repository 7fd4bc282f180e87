"""The rules that derive a job's state from its tasks, in order, each with an example.

The code computes the state of each example, which verifies the rules and their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state


@dataclass(frozen=True, slots=True)
class RollupRule:
    """The first rule whose condition `when` holds decides. `short`: the condition in a picture.

    `example` also satisfies as many of the later rules as possible.
    """

    when: str
    short: str
    example: JobTally

    @property
    def state(self) -> S:
        """The state that the code derives from the example."""
        return job_state(self.example)


def _tally(
    counts: Mapping[S, int],
    *,
    tolerated: int = 0,
    minimum: int | None = None,
    excused: int = 0,
    ever_started: bool = True,
) -> JobTally:
    replicas = sum(counts.values())
    least = replicas if minimum is None else minimum
    group = GroupTally(counts, least, excused)
    return JobTally((group,), least, tolerated, minimum is not None, ever_started)


RULES = (
    RollupRule("all tasks SUCCEEDED", "all SUCCEEDED", _tally({S.SUCCEEDED: 3}, minimum=1)),
    RollupRule(
        "more FAILED than `max_task_failures`",
        "FAILED > max_task_failures",
        _tally({S.FAILED: 2, S.UNSCHEDULABLE: 1, S.KILLED: 1, S.SUCCEEDED: 3}, tolerated=1),
    ),
    RollupRule(
        "any UNSCHEDULABLE",
        "any UNSCHEDULABLE",
        _tally({S.UNSCHEDULABLE: 1, S.KILLED: 1, S.SUCCEEDED: 2}, minimum=1),
    ),
    RollupRule(
        "any KILLED, other than by a dependency inside the job",
        "any KILLED, not by a group's dependency",
        _tally({S.KILLED: 2, S.SUCCEEDED: 2, S.WORKER_FAILED: 1}, minimum=1, excused=1),
    ),
    RollupRule(
        "all terminal, `min_available` is set, and the minima of each group and of the job are met",
        "all ended, minimum set and met",
        _tally({S.SUCCEEDED: 2, S.WORKER_FAILED: 1, S.FAILED: 1}, tolerated=1, minimum=2),
    ),
    RollupRule(
        "all terminal, any WORKER_FAILED or PREEMPTED",
        "all ended, any WORKER_FAILED, PREEMPTED",
        _tally({S.SUCCEEDED: 2, S.PREEMPTED: 1, S.FAILED: 1}, tolerated=1),
    ),
    RollupRule(
        "all terminal, `min_available` is not set, some SUCCEEDED and all others FAILED",
        "all ended, no minimum, some SUCCEEDED",
        _tally({S.SUCCEEDED: 1, S.FAILED: 2}, tolerated=2),
    ),
    RollupRule("all terminal otherwise", "all ended otherwise", _tally({S.FAILED: 2}, tolerated=2)),
    RollupRule(
        "any active, or any ever started",
        "any active, or any ever started",
        _tally({S.PENDING: 2, S.SUCCEEDED: 1}),
    ),
    RollupRule("else", "else", _tally({S.PENDING: 3}, ever_started=False)),
)
