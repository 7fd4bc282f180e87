"""Load the totals of usage, added up by project, user, job name or month, ranked by waste."""

UNCOUNTED = "FROM controlplane_attempt a WHERE a.released_at IS NOT NULL AND NOT a.is_usage_counted"
"""Released attempts that the totals lack, a source of work of convergence."""
