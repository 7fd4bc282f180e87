"""Load counts for pages of the admin, each by one indexed statement."""

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Count, F
from django.db.models.functions import Greatest

from controlplane.domain.state.states import CallbackState
from controlplane.models import Alert, Attempt, Callback, Cell, OneOff
from controlplane.queries.sql import rows


def count_tasks_of_jobs(job_ids: Sequence[int]) -> dict[int, dict[int, int]]:
    """Return the number of tasks by state of each job, from the counts of its groups."""
    statement = """
        SELECT g.job_id, c.state - 1, sum(c.n)::bigint
        FROM controlplane_taskgroup g, unnest(g.counts) WITH ORDINALITY AS c(n, state)
        WHERE g.job_id = ANY(%s) AND c.n > 0 GROUP BY 1, 2
        """
    counts: dict[int, dict[int, int]] = {job_id: {} for job_id in job_ids}
    for job_id, state, number in rows(statement, [list(job_ids)]):
        counts[job_id][state] = number
    return counts


def count_held_attempts(cell_ids: Sequence[int]) -> dict[int, int]:
    """Return the number of unreleased attempts by cell."""
    held = Attempt.objects.filter(cell_id__in=cell_ids, released_at=None).order_by()
    return dict(held.values_list("cell_id").annotate(Count("uid")))


def count_cells() -> dict[str, int]:
    """Return the number of cells by state."""
    return dict(Cell.objects.order_by("state").values_list("state").annotate(Count("id")))


def find_recurring_alert(kind: str, *, since: datetime) -> str | None:
    """Return the text of an open alert of that kind that was raised again since then."""
    found = Alert.objects.filter(
        kind=kind, cleared_at=None, last_raised_at__gt=Greatest(F("raised_at"), since)
    )
    return found.values_list("text", flat=True).first()


def count_open_alerts() -> int:
    """Return the number of open alerts."""
    return Alert.objects.filter(cleared_at=None).count()


def count_callbacks(*states: CallbackState) -> dict[str, int]:
    """Return the number of callbacks by state, by partial indexes without delivered ones."""
    return {state: Callback.objects.filter(state=state).count() for state in states}


def count_resolving() -> int:
    """Return the number of one-off tasks that are RESOLVING."""
    return OneOff.objects.filter(claim__isnull=False).count()
