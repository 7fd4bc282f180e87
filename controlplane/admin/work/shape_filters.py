"""Filters of tasks by the pool and the band of their shapes."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest

from controlplane.domain.state.states import Band
from controlplane.models import Pool, Shape
from controlplane.queries.work_counts import STUCK_SHAPES

IS_STUCK = Q(shape_id__in=RawSQL(STUCK_SHAPES, ()))
"""The condition of a waiting task that no cell of its pool can run."""


class PoolFilter(admin.SimpleListFilter):
    """A filter by the name of a pool."""

    title = "pool"
    parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return all pools."""
        names = Pool.objects.order_by("name").values_list("name", flat=True)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the tasks of the selected pool."""
        if not self.value():
            return queryset
        shapes = Shape.objects.filter(pool__name=self.value())
        return queryset.filter(shape_id__in=shapes.values("id"))


class BandFilter(admin.SimpleListFilter):
    """A filter by band."""

    title = "band"
    parameter_name = "band"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return all bands."""
        return [(f"{band:d}", band.name.lower()) for band in Band]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the tasks of the selected band."""
        known = [band for band in Band if f"{band:d}" == self.value()]
        if not known:
            return queryset
        shapes = Shape.objects.filter(band=known[0])
        return queryset.filter(shape_id__in=shapes.values("id"))
