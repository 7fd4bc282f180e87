"""Rule 10: claims of tasks and of callbacks whose holder has not told how it went."""

RESOLVING = """
    FROM controlplane_oneoff o
    WHERE o.claim IS NOT NULL AND o.claimed_at <= %(now)s - make_interval(secs => %(claim)s)
    """

CLAIMED_CALLBACKS = """
    FROM controlplane_callback k WHERE k.state = 'claimed' AND k.claimed_until <= %(now)s
    """
