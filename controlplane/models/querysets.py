"""Querysets that exclude deleted jobs and their rows."""

from typing import Self, TypeVar

from django.db.models import Model, QuerySet

ModelT = TypeVar("ModelT", bound=Model, covariant=True)


class JobQuerySet(QuerySet[ModelT]):
    """Querysets of jobs."""

    def visible(self) -> Self:
        """Exclude deleted jobs, whose rows remain until they have settled."""
        return self.filter(deleted_at=None)


class JobPartQuerySet(QuerySet[ModelT]):
    """Querysets of rows with a foreign key `job`."""

    def visible(self) -> Self:
        """Exclude rows of deleted jobs."""
        return self.filter(job__deleted_at=None)
