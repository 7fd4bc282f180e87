"""Time limits of the convergence rules, in seconds."""

from dataclasses import dataclass

DRAIN_SECONDS = 3600.0
"""Default time for tasks to finish on a cell that is drained (Nomad: 1 h)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Time limits; an installation sets `interval`, `lease` and `audit_age`."""

    interval: float = 5.0
    lease: float = 30.0
    # Factor of the control plane's lease to the cell's own, for clock drift and message delay.
    lease_factor: float = 1.25
    # Ticks that must find a cell silent, so that a stalled control plane declares no cell lost.
    silent_ticks: int = 3
    # After a gap of more intervals between ticks, convergence waits for one lease.
    gap_intervals: float = 3.0
    # The cell enforces a task's timeout; convergence acts this much later.
    timeout_grace: float = 30.0
    # A stop that is not confirmed this long after its grace period is forced …
    force_patience: float = 30.0
    # … and after this time, the forced one included, its cell is quarantined.
    stop_patience: float = 60.0
    # Consecutive system failures, of so many jobs and images, that quarantine a cell.
    failures_in_a_row: int = 10
    failed_jobs: int = 3
    failed_images: int = 3
    quarantine: float = 600.0
    # Older failures are ignored.
    failures_window: float = 3600.0
    # A claimed one-off task is released after this time (Diego: RESOLVING for 30 s is COMPLETED
    # again).
    claim_seconds: float = 30.0
    # Ticks between two pages of the walk that recounts and finds orphans, which are rare.
    walk_ticks: int = 10
    # Retention of records: audit entries, tick runs, and findings (dead letters, closed alerts).
    audit_age: float = 365 * 86_400.0
    run_age: float = 86_400.0
    finding_age: float = 30 * 86_400.0
    page: int = 1_000
