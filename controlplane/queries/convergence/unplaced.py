"""Rule 5: tasks that found no place in time."""

from controlplane.contract.states import TaskState as S

# A job's own timeout wins. For other jobs the timeout that their pool has now counts, and for
# one-off tasks of a pool that has none, the installation's, which stands in the group.
DEADLINE = """
    CASE WHEN g.deadline_at IS NULL OR j.is_one_off THEN COALESCE(
        g.startable_at + make_interval(secs => p.pending_timeout_seconds), g.deadline_at)
    ELSE g.deadline_at END
    """
"""The scheduling deadline of group `g` of job `j` in pool `p`."""

# Deadlines are judged up to the last pass that looked at all that waits in the pool. The instant
# of that pass is in the future if the clock was put back.
_JUDGED = """
    CASE WHEN %(covered)s::timestamptz IS NOT NULL
         THEN LEAST(%(covered)s::timestamptz, %(now)s, uncovered_since) END
    """
# OFFSET has the instants computed once for each pool, not for each group.
_POOLS = f"""
    SELECT id, pending_timeout_seconds, {_JUDGED} AS judged,
           {_JUDGED} - make_interval(secs => pending_timeout_seconds) AS judged_starts
    FROM controlplane_pool OFFSET 0
    """
_WAITS = f"t.state = {S.PENDING:d} AND t.started_at IS NULL"

# The first branch goes from the groups that wait, which the index of waiting tasks has, to their
# deadlines. OFFSET keeps that order: most deadlines belong to what is over. The job is read only
# for groups of which one of the two possible deadlines is over. The second branch goes by the index
# of held attempts: tasks that wait again while their last attempt is not released.
UNPLACED = f"""
    FROM (
        SELECT t.id AS task_id, t.job_id, t.attempt_uid AS uid
        FROM (SELECT shape_id, group_id FROM controlplane_task
              WHERE state = {S.PENDING:d} AND NOT attempt_open GROUP BY shape_id, group_id) w
        JOIN controlplane_shape s ON s.id = w.shape_id
        JOIN ({_POOLS}) p ON p.id = s.pool_id
        CROSS JOIN LATERAL (
            SELECT g.id, g.job_id, g.deadline_at, g.startable_at FROM controlplane_taskgroup g
            WHERE g.id = w.group_id
              AND (g.deadline_at <= p.judged OR g.startable_at <= p.judged_starts)
            OFFSET 0) g
        JOIN controlplane_job j ON j.id = g.job_id AND {DEADLINE} <= p.judged
        JOIN controlplane_task t ON t.shape_id = w.shape_id AND t.group_id = g.id
        WHERE {_WAITS} AND NOT t.attempt_open
        UNION ALL
        SELECT t.id, t.job_id, t.attempt_uid
        FROM controlplane_attempt h JOIN controlplane_task t ON t.id = h.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_job j ON j.id = t.job_id
        JOIN ({_POOLS}) p ON p.id = j.pool_id
        WHERE {DEADLINE} <= p.judged AND {_WAITS}
          AND t.attempt_open AND h.released_at IS NULL AND h.finished_at IS NOT NULL
    ) a
    JOIN controlplane_job j ON j.id = a.job_id
    WHERE j.ending_as IS NULL
    """
