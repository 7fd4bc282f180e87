"""Abandoned claims, images that cells could not pull, and quiet alerts."""

_QUIET = "a.last_raised_at <= %(now)s - make_interval(secs => q.seconds)"

QUIET_ALERTS = f"""
    FROM unnest(%(alert_kinds)s::text[], %(alert_seconds)s::float[]) AS q(kind, seconds)
    JOIN controlplane_alert a ON a.kind = q.kind AND a.cleared_at IS NULL AND {_QUIET}
    """

IMAGES = "FROM controlplane_imagefailure f WHERE true"

RESOLVING = """
    FROM controlplane_oneoff o
    WHERE o.claim IS NOT NULL AND o.claimed_at <= %(now)s - make_interval(secs => %(claim)s)
    """

CLAIMED_CALLBACKS = """
    FROM controlplane_callback k WHERE k.state = 'claimed' AND k.claimed_until <= %(now)s
    """
