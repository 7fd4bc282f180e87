"""Rule 5: tasks that found no place in time."""

# The instant of the last pass lies ahead of us if the clock was put back.
_LATE = """
    WHERE g.deadline_at <= %(covered)s AND g.deadline_at <= %(now)s
    """
_WAITS = "t.state = 1 AND t.started_at IS NULL"

# From the groups that wait, which the index of waiting tasks tells, to their deadlines (in this
# order, for which the OFFSET is: most deadlines are of what is over), and by the index of held
# attempts: what waits again while its last one is not gone.
UNPLACED = f"""
    FROM (
        SELECT t.id AS task_id, t.job_id, t.attempt_uid AS uid
        FROM (SELECT shape_id, group_id FROM controlplane_task
              WHERE state = 1 AND NOT attempt_open GROUP BY shape_id, group_id) w
        CROSS JOIN LATERAL (
            SELECT g.id FROM controlplane_taskgroup g {_LATE} AND g.id = w.group_id OFFSET 0) g
        JOIN controlplane_task t ON t.shape_id = w.shape_id AND t.group_id = g.id
        WHERE {_WAITS} AND NOT t.attempt_open
        UNION ALL
        SELECT t.id, t.job_id, t.attempt_uid
        FROM controlplane_attempt h JOIN controlplane_task t ON t.id = h.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id {_LATE} AND {_WAITS}
          AND t.attempt_open AND h.released_at IS NULL AND h.finished_at IS NOT NULL
    ) a
    JOIN controlplane_job j ON j.id = a.job_id
    WHERE j.ending_as IS NULL
    """
