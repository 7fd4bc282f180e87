"""Rule 2: orders that nobody answered in time."""

from controlplane.contract.states import TaskState as S

UNANSWERED = f"""
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.ASSIGNED:d} AND a.start_before <= %(now)s
      AND NOT g.at_most_once
    """
