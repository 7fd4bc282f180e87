"""Decide whether a schedule whose jobs are refused has an alert."""

from collections.abc import Sequence

from controlplane.domain.schedules.firing import Outcome
from controlplane.domain.state.effects import ClearAlert, RaiseAlert

REFUSED_ALERT = "schedule_refused"

REFUSED_IN_SUCCESSION = 3
"""Refused jobs in succession that raise the alert: a single one may have a cause that passes."""


def judge_refusals(
    subject: str, latest: Sequence[tuple[Outcome, str]]
) -> RaiseAlert | ClearAlert | None:
    """Return the change of the alert; `latest`: outcome and text of the latest jobs, newest first.

    Only instants that started a job or whose job was refused count.
    """
    if not latest:
        return None
    newest, text = latest[0]
    if newest is Outcome.STARTED:
        return ClearAlert(REFUSED_ALERT, subject)
    refused = latest[:REFUSED_IN_SUCCESSION]
    if len(refused) < REFUSED_IN_SUCCESSION:
        return None
    if any(outcome is not Outcome.REFUSED for outcome, _ in refused):
        return None
    words = f"the last {REFUSED_IN_SUCCESSION} jobs were refused, the latest one: {text}"
    return RaiseAlert(REFUSED_ALERT, subject, words[:1000])
