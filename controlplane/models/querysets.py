"""Querysets that leave out deleted jobs and the rows that belong to them."""

from typing import Self, TypeVar

from django.db.models import Model, QuerySet

ModelT = TypeVar("ModelT", bound=Model, covariant=True)


class JobQuerySet(QuerySet[ModelT]):
    """Jobs."""

    def visible(self) -> Self:
        """Leave out jobs that were deleted; their rows stay until they have settled."""
        return self.filter(deleted_at=None)


class JobPartQuerySet(QuerySet[ModelT]):
    """Rows with a foreign key `job`."""

    def visible(self) -> Self:
        """Leave out rows of deleted jobs."""
        return self.filter(job__deleted_at=None)
