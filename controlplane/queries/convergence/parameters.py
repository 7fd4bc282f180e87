"""The parameters of the rules' statements."""

from datetime import datetime
from typing import Any

from controlplane.domain.alerts import QUIET_SECONDS
from controlplane.domain.cells.exec_sessions import ABSENCE_SECONDS, CLAIM_SECONDS
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.usage import month_of, months_before


def parameters_of(now: datetime, covered_at: datetime | None, policy: Policy) -> dict[str, Any]:
    """Return the parameters by name. `covered_at`: of `TickState`."""
    return {
        "now": now,
        "covered": covered_at,
        "hearing": min(policy.interval, policy.lease / 3),
        "grace": policy.timeout_grace,
        "force_patience": policy.force_patience,
        "patience": policy.stop_patience,
        "failures": policy.failures_in_a_row,
        "failed_jobs": policy.failed_jobs,
        "failed_images": policy.failed_images,
        "window": policy.failures_window,
        "claim": policy.claim_seconds,
        "exec_claim": CLAIM_SECONDS,
        "exec_absence": ABSENCE_SECONDS,
        # Less half a tick, because ticks begin some milliseconds early or late.
        "walk": (policy.walk_ticks - 0.5) * policy.interval,
        "totals_check_seconds": policy.totals_check_seconds,
        "sample": policy.sample_seconds - 0.5 * policy.interval,
        "audit_age": policy.audit_age,
        "run_age": policy.run_age,
        "finding_age": policy.finding_age,
        "cache_age": policy.cache_age,
        "usage_month": months_before(month_of(now), policy.usage_months),
        "page": policy.page,
        "alert_kinds": list(QUIET_SECONDS),
        "alert_seconds": list(QUIET_SECONDS.values()),
    }
