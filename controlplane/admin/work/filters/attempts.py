"""The filters of the list of attempts, each of which an index serves."""

import re
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.http import HttpRequest

from controlplane.admin.base import IndexedFilter, StateFilter
from controlplane.admin.lists.paging import is_among
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import ACTIVE, ATTEMPT_STATES, UNSUCCESSFUL
from controlplane.models import Attempt
from controlplane.models.attempts import IMAGE_FAILED

_CELL = "cell__id__exact"
# A hundred pages; reading and sorting them takes about 10 ms.
_RELEASED = 2_500
# Parameters of which an index finds the attempts of a cell.
_INDEXED = frozenset({"image_failed", "released_at__gte"})
# States of which a partial index finds the attempts.
_INDEXED_STATES = frozenset(f"{state:d}" for state in (*ACTIVE, *UNSUCCESSFUL))


class HeldFilter(IndexedFilter):
    """A filter for attempts that hold capacity, which a partial index finds.

    Links may also have the id of a cell. A list without another filter that an index serves has its
    attempts that hold capacity, and the 2,500 that were released last.
    """

    title = "capacity"
    parameter_name = "held"
    options: ClassVar = {"yes": ("Held by the attempt", Q(released_at=None))}

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        self._cell = params.pop(_CELL)[-1] if _CELL in params else None
        states = params.get("state__exact", ())
        self._is_narrow = not _INDEXED_STATES.isdisjoint(states) or not _INDEXED.isdisjoint(params)
        super().__init__(request, params, model, model_admin)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the selected choice, and of the cell if a link has one."""
        found = super().queryset(request, queryset)
        if self._cell is None:
            return found
        if not re.fullmatch("[0-9]{1,18}", self._cell):
            return found.none()
        if self.value() or self._is_narrow:
            return found.filter(cell_id=self._cell)
        of_cell = Attempt.objects.filter(cell_id=self._cell).order_by()
        released = of_cell.filter(released_at__isnull=False).order_by("-released_at")
        held = of_cell.filter(released_at=None).values("pk")
        # A union, since two conditions joined by OR lead to a scan of the table.
        return found.filter(is_among(held.union(released.values("pk")[:_RELEASED], all=True)))


class ImageFailureFilter(IndexedFilter):
    """A filter for attempts that ended because of their image, which a partial index finds."""

    title = "image"
    parameter_name = "image_failed"
    options: ClassVar = {"yes": ("Failed", IMAGE_FAILED)}


class AttemptStateFilter(StateFilter):
    """A filter by state; attempts that go on are found among those that hold capacity."""

    states: ClassVar = ATTEMPT_STATES

    def condition(self, state: TaskState, request: HttpRequest) -> Q:
        """Return the condition of a state."""
        return Q(state=state, released_at=None) if state in ACTIVE else Q(state=state)
