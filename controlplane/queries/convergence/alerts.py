"""Alerts that nobody has raised again for long enough."""

_QUIET = "a.last_raised_at <= %(now)s - make_interval(secs => q.seconds)"

QUIET_ALERTS = f"""
    FROM unnest(%(alert_kinds)s::text[], %(alert_seconds)s::float[]) AS q(kind, seconds)
    JOIN controlplane_alert a ON a.kind = q.kind AND a.cleared_at IS NULL AND {_QUIET}
    """
