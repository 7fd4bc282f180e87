"""Moves of a job in the queue of its pool: to the front or the end of its band."""

from enum import StrEnum

from controlplane.domain.errors import NotPermitted
from controlplane.domain.roles import Role

# With these, the jobs of one owner have an order among themselves only.
_BY_OWNER = frozenset({"drf", "fair_share", "fair_projects"})


class QueueEnd(StrEnum):
    """The end of its band to which a job is moved."""

    FRONT = "front"
    END = "end"


def check_move(to: QueueEnd, *, sequencer: str, role: Role) -> None:
    """Raise NotPermitted unless a caller who may change the job may also move it there.

    In a pool that orders all jobs in one line, a job at the front passes those of other owners,
    which needs an operator.
    """
    if to is QueueEnd.FRONT and sequencer not in _BY_OWNER and role is not Role.OPERATOR:
        raise NotPermitted(
            f"the sequencer {sequencer} orders the jobs of all owners in one line: only operators"
            " may move a job to its front"
        )


def rank_at(to: QueueEnd, *, lowest: int, highest: int) -> int:
    """Return the rank before or after all others; `lowest` and `highest`: of moved jobs."""
    return min(lowest, 0) - 1 if to is QueueEnd.FRONT else max(highest, 0) + 1
