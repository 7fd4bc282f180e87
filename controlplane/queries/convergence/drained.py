"""Drains, with rule 5: what is still on a cell that should be empty."""

DRAINED = """
    FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.finished_at IS NULL AND NOT g.at_most_once
      AND c.ordered_state = 'DRAINING' AND c.drain_deadline_at <= %(now)s
      AND c.state <> 'LOST' AND a.incarnation = c.incarnation
    """
