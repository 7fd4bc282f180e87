"""Rule 3: containers that take too long to come into being."""

from controlplane.contract.states import TaskState as S

_START_PERIOD = "COALESCE((g.launch #>> '{health_check,start_period_seconds}')::float8, 0)"

BUILD_ENDS_AT = f"""
    LEAST(a.state_since + make_interval(secs => CASE a.phase
        WHEN 'pulling' THEN p.pull_timeout_seconds
        -- It may wait for its turn in the cell behind pulls and creations of others.
        WHEN 'preparing' THEN NULL
        WHEN 'checking' THEN p.create_timeout_seconds + {_START_PERIOD}
        ELSE p.create_timeout_seconds END),
    -- Each of the four phases once: who goes back and forth between them does not come to an end.
    a.start_before + make_interval(
        secs => p.pull_timeout_seconds + 3 * p.create_timeout_seconds + {_START_PERIOD}))
    """
"""Until when an attempt `a` of group `g` in pool `p` may be BUILDING, in its phase and in all.

`state_since` is when the attempt entered its phase, as the control plane learned it. `preparing`
has no limit of its own: that of the whole build holds.
"""

STUCK_BUILDS = f"""
    FROM controlplane_attempt a
    JOIN controlplane_cell c ON c.id = a.cell_id
    JOIN controlplane_pool p ON p.id = c.pool_id
    JOIN controlplane_taskgroup g ON g.id = a.group_id
    WHERE a.released_at IS NULL AND a.state = {S.BUILDING:d} AND {BUILD_ENDS_AT} <= %(now)s
    """
