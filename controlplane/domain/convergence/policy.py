"""Time limits of the convergence rules, in seconds."""

from dataclasses import dataclass

DRAIN_SECONDS = 3600.0
"""How long work may take to leave a cell by finishing, unless the operator says (Nomad: 1 h)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults are the design's; an installation sets `interval`, `lease` and `audit_age`."""

    interval: float = 5.0
    lease: float = 30.0
    # Our view of a lease is this much longer than the cell's own: clocks drift, messages take time.
    lease_factor: float = 1.25
    # So many ticks must have found a cell silent, or a stall of our own would look like its death.
    silent_ticks: int = 3
    # After a gap of our own longer than so many intervals we first listen for one lease.
    gap_intervals: float = 3.0
    # The cell enforces a task's timeout; we act so much later, so that its word usually comes
    # first.
    timeout_grace: float = 30.0
    # A stop without confirmation so long after its grace is forced …
    force_patience: float = 30.0
    # … and after so long, and as long as a forced one has had, its cell is quarantined.
    stop_patience: float = 60.0
    # So many system failures in a row, of so many jobs and images, put a cell aside for so long.
    failures_in_a_row: int = 10
    failed_jobs: int = 3
    failed_images: int = 3
    quarantine: float = 600.0
    # Older ones say nothing of how the cell is now.
    failures_window: float = 3600.0
    # Who claimed a task to resolve it and has not done so by then is gone (Diego: RESOLVING for
    # 30 s is COMPLETED again).
    claim_seconds: float = 30.0
    # So many ticks lie between two pages of the walk that recounts and looks for orphans: what it
    # repairs is a fault of ours, and rare.
    walk_ticks: int = 10
    # Records of what was are kept so long: lines of the audit, runs of ticks, and what operators
    # were told (dead letters, alerts that are over).
    audit_age: float = 365 * 86_400.0
    run_age: float = 86_400.0
    finding_age: float = 30 * 86_400.0
    page: int = 1_000
