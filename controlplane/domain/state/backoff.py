"""Backoff of a requeued task: min(base * 2^n, cap), minus a jitter by task."""

from controlplane.domain.state.transitions import BackoffKind, Counters

FAILURE_BASE_SECONDS = 1.0
CRASH_BASE_SECONDS = 1.0
SYSTEM_BASE_SECONDS = 5.0
CAP_SECONDS = 300.0
# Maximum fraction taken off a wait, so that rows do not return simultaneously.
JITTER = 0.25
_GOLDEN = 0.6180339887498949


def wait_seconds(wait: BackoffKind, counters: Counters, *, task_id: int) -> float:
    """Return the seconds until the task may be placed again; 0 for BackoffKind.NONE."""
    match wait:
        case BackoffKind.NONE:
            return 0.0
        case BackoffKind.FAILURE:
            base, tries = FAILURE_BASE_SECONDS, counters.failure
        case BackoffKind.CRASH:
            base, tries = CRASH_BASE_SECONDS, counters.consecutive_crashes
        case BackoffKind.SYSTEM:
            base, tries = SYSTEM_BASE_SECONDS, max(counters.system_row, counters.refusal_row)
        case BackoffKind.RULE:
            # Consecutive system failures, and those that the failure budget paid for.
            base, tries = SYSTEM_BASE_SECONDS, counters.system_row + counters.failure
    return doubled_seconds(base, CAP_SECONDS, tries, row_id=task_id)


def doubled_seconds(base: float, cap: float, tries: int, *, row_id: int) -> float:
    """Return `base` doubled per try after the first, at most `cap`, less the jitter of a row.

    The golden-ratio sequence spreads neighbouring rows evenly.
    """
    full = min(base * 2.0 ** min(max(tries - 1, 0), 32), cap)
    fraction = ((row_id + 7 * tries) * _GOLDEN) % 1.0
    return full * (1.0 - JITTER * fraction)
