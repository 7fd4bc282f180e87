"""Rule 4: programs that run longer than they may."""

from controlplane.contract.states import TaskState as S

OVERRUNS = f"""
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.RUNNING:d} AND g.timeout_seconds IS NOT NULL
      AND a.started_at + make_interval(secs => g.timeout_seconds + %(grace)s) <= %(now)s
    """
