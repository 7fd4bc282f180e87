"""Rule 2: orders that nobody answered in time."""

UNANSWERED = """
    FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = 9 AND a.start_before <= %(now)s
      AND NOT g.at_most_once
    """
