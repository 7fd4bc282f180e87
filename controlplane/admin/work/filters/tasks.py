"""The filter of a list of tasks for open ones: waiting, stuck or on a cell."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest

from controlplane.admin.base import IndexedFilter
from controlplane.admin.lists.paging import EXACT_UP_TO, is_among
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Shape, Task
from controlplane.queries.work_counts import STUCK_SHAPES

_WAITS = Q(state=TaskState.PENDING, attempt_open=False)
_IS_STUCK = Q(shape_id__in=RawSQL(STUCK_SHAPES, ()))
# The name of a parameter, and the lookup of a job or shape.
_OF_SHAPES = {
    "pool": "pool__name",
    "band": "band",
    "user": "owner_id",
    "project": "project_id",
    "domain": "project__domain_id",
}
_NUMBERS = tuple(lookup for name, lookup in _OF_SHAPES.items() if name != "pool")
_HELD = "held"
_STUCK = "stuck"


def selects_waiting(parameters: Mapping[str, Any]) -> bool:
    """Return whether these parameters of a list select waiting tasks only."""
    chosen = parameters.get(OpenFilter.parameter_name)
    return chosen in ("pending", _STUCK) or (
        not selects_held(parameters) and any(name in parameters for name in _OF_SHAPES)
    )


def sorts_waiting(parameters: Mapping[str, Any]) -> bool:
    """Return whether these parameters select waiting tasks that no index has in their order."""
    return selects_waiting(parameters) and (
        parameters.get(OpenFilter.parameter_name) == _STUCK
        or any(name in parameters for name in _OF_SHAPES)
    )


def selects_held(parameters: Mapping[str, Any]) -> bool:
    """Return whether these parameters of a list select tasks on cells only."""
    return bool(parameters.get(OpenFilter.parameter_name) == _HELD)


class OpenFilter(IndexedFilter):
    """A filter for open tasks: partial indexes find the choices among many ended tasks.

    Links may also have `pool` (a name), `band`, and the id of a `user`, `project` or `domain`. Of
    waiting tasks of these, and of stuck ones, at most the number that lists count exactly is
    sorted.
    """

    title = "open tasks"
    parameter_name = "open"
    options: ClassVar = {
        "pending": ("Waiting to be placed", _WAITS),
        _STUCK: ("Waiting, and no cell can run it", _WAITS & _IS_STUCK),
        _HELD: (
            "On a cell",
            Q(pk__in=Attempt.objects.filter(released_at=None).values("task_id")),
        ),
    }

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        self._shape = {
            lookup: params.pop(name)[-1] for name, lookup in _OF_SHAPES.items() if name in params
        }
        for lookup in _NUMBERS:
            if not re.fullmatch("[0-9]{1,18}", self._shape.get(lookup, "0")):
                self._shape[lookup] = "-1"  # no job has it
        super().__init__(request, params, model, model_admin)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the selected choice."""
        if self._shape and self.value() == _HELD:
            of_jobs = {f"job__{lookup}": value for lookup, value in self._shape.items()}
            return super().queryset(request, queryset).filter(**of_jobs)
        if not self._shape and self.value() != _STUCK:
            return super().queryset(request, queryset)
        found = super().queryset(request, Task.objects.filter(_WAITS))
        if self._shape:
            found = found.filter(shape_id__in=self._shapes().values("id"))
        return queryset.filter(is_among(found.order_by().values("pk")[:EXACT_UP_TO]))

    def _shapes(self) -> QuerySet[Shape]:
        return Shape.objects.filter(**self._shape)
