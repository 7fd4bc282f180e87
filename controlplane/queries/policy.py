"""Load the policy of convergence from the settings."""

from django.conf import settings

from controlplane.domain.convergence.policy import Policy


def load_policy() -> Policy:
    """Return the installation's policy, for the tick and for forecasts of the tick."""
    return Policy(
        interval=settings.CELLRUN.convergence_interval_seconds,
        lease=settings.CELLRUN.lease_seconds,
        audit_age=settings.CELLRUN.audit_days * 86_400.0,
        usage_months=settings.CELLRUN.usage_months,
        cache_age=settings.CELLRUN.cache_days * 86_400.0,
        cache_bytes=settings.CELLRUN.max_cache_mib * 2**20,
    )
