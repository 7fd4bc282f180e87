"""How much one user may have in hand."""

from collections.abc import Iterable

from django.conf import settings
from django.contrib.auth import get_user_model

from controlplane.domain.jobs.submission import JobsRefused
from controlplane.queries.jobs.submission import count_open_tasks_of
from controlplane.spec import Fault


def check_cap(
    owner_id: int, jobs: Iterable[tuple[int, str, int]], *, is_binding: bool = True
) -> None:
    """Whether the user may have more jobs: (position, field, tasks) each. Raises JobsRefused.

    Locks the user: one user's submissions follow each other, so that two cannot pass together. Not
    `is_binding`: nothing will be submitted, nothing is locked.
    """
    users = get_user_model().objects
    owner = (users.select_for_update(no_key=True) if is_binding else users).get(pk=owner_id)
    limit = settings.CELLRUN.max_unfinished_tasks_per_user
    open_tasks = count_open_tasks_of(owner_id)
    for position, field, tasks in jobs:
        open_tasks += tasks
        if open_tasks > limit:
            text = (
                f"would make {open_tasks} unfinished tasks of user {owner.get_username()},"
                f" who may have {limit}"
            )
            raise JobsRefused([(position, Fault(field, text))])
