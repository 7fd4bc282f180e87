"""The filter of a list of tasks for open ones: waiting, stuck or on a cell."""

from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest

from controlplane.admin.base import IndexedFilter
from controlplane.admin.paging import EXACT_UP_TO
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Shape, Task
from controlplane.queries.work_counts import STUCK_SHAPES

_WAITS = Q(state=TaskState.PENDING, attempt_open=False)
_IS_STUCK = Q(shape_id__in=RawSQL(STUCK_SHAPES, ()))
_OF_SHAPES = ("pool", "band")


class OpenFilter(IndexedFilter):
    """A filter for open tasks: partial indexes find the choices among many ended tasks.

    Links may also have `pool` (a name) and `band` (a number) of waiting tasks. Of these, and of
    stuck ones, at most the number that lists count exactly is sorted.
    """

    title = "open tasks"
    parameter_name = "open"
    options: ClassVar = {
        "pending": ("Waiting to be placed", _WAITS),
        "stuck": ("Waiting, and no cell can run it", _WAITS & _IS_STUCK),
        "held": (
            "On a cell",
            Q(pk__in=Attempt.objects.filter(released_at=None).values("task_id")),
        ),
    }

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
    ) -> None:
        self._shape = {name: params.pop(name)[-1] for name in _OF_SHAPES if name in params}
        super().__init__(request, params, model, model_admin)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the selected choice."""
        if not self._shape and self.value() != "stuck":
            return super().queryset(request, queryset)
        found = super().queryset(request, Task.objects.filter(_WAITS))
        if self._shape:
            found = found.filter(shape_id__in=self._shapes().values("id"))
        return queryset.filter(pk__in=found.order_by().values("pk")[:EXACT_UP_TO])

    def _shapes(self) -> QuerySet[Shape]:
        shapes = Shape.objects.all()
        if pool := self._shape.get("pool"):
            shapes = shapes.filter(pool__name=pool)
        if band := self._shape.get("band"):
            shapes = shapes.filter(band=band) if band.isdigit() else shapes.none()
        return shapes
