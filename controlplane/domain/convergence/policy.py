"""Time limits of the convergence rules, in seconds."""

from dataclasses import dataclass
from datetime import timedelta

DRAIN_SECONDS = 3600.0
"""Default time for the tasks of a draining cell to finish (as in Nomad: 1 h)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Time limits in seconds; an installation sets `interval`, `lease` and the ages."""

    interval: float = 5.0
    lease: float = 30.0
    # The control plane's lease divided by the cell's own, to allow for clock drift and delays.
    lease_factor: float = 1.25
    # Ticks in which a cell must be silent: a stalled control plane declares no cell lost.
    silent_ticks: int = 3
    # After a longer gap between ticks (in intervals), convergence waits for one lease.
    gap_intervals: float = 3.0
    # The cell enforces a task's timeout; convergence acts later by this time.
    timeout_grace: float = 30.0
    # Time after the grace period of an unconfirmed stop until it is forced, …
    force_patience: float = 30.0
    # … and until its cell is quarantined.
    stop_patience: float = 60.0
    # Consecutive system failures, and their jobs and images, that quarantine a cell.
    failures_in_a_row: int = 10
    failed_jobs: int = 3
    failed_images: int = 3
    quarantine: float = 600.0
    # Older failures are ignored.
    failures_window: float = 3600.0
    # Time after which the claim of a one-off task expires (as in Diego).
    claim_seconds: float = 30.0
    # Ticks between two pages of the walks for recounts and orphans.
    walk_ticks: int = 10
    # Between two checks of the totals of stored bytes, each of which reads all sizes.
    totals_check_seconds: float = 1_800.0
    # Time between two samples of the figures of pools.
    sample_seconds: float = 15.0
    # Retention of records: audit entries, tick runs and samples, and findings (dead letters,
    # closed alerts).
    audit_age: float = 365 * 86_400.0
    run_age: float = 86_400.0
    finding_age: float = 30 * 86_400.0
    # Months before the present one of which the totals of usage are kept.
    usage_months: int = 24
    # Time without a hit after which an entry of the cache is evicted, and the size of all entries.
    cache_age: float = 30 * 86_400.0
    cache_bytes: int = 100 * 2**30
    page: int = 1_000

    @property
    def gap(self) -> timedelta:
        """Return the longest time between two ticks that is no gap."""
        return timedelta(seconds=self.gap_intervals * self.interval)
