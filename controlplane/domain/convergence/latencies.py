"""Latencies as counts in buckets, which add up over pools and time, unlike percentiles."""

from bisect import bisect_right
from collections.abc import Sequence

BOUNDS = (
    *(0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0),
)
"""Bucket n has the latencies from bound n - 1 to below bound n, in seconds; the last has no end."""


def bucket_of(seconds: float) -> int:
    """Return the bucket of a latency."""
    return bisect_right(BOUNDS, seconds)


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the latency in seconds below which the `share` of starts is; None without starts.

    Starts in a bucket count as evenly distributed. The last bucket counts as its lower bound.
    """
    total = sum(counts)
    if not total:
        return None
    left = share * total
    for bucket, count in enumerate(counts[:-1]):
        if count and left <= count:
            low = BOUNDS[bucket - 1] if bucket else 0.0
            return low + (BOUNDS[bucket] - low) * left / count
        left -= count
    return BOUNDS[-1]
