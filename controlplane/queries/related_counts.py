"""Count related rows beside the rows of a list."""

from typing import Any

from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce


def count_by(found: Any, key: str) -> Coalesce:
    """Return the number of rows whose `key` is the row's id; joins of several multiply them."""
    counted = found.filter(**{key: OuterRef("pk")}).order_by().values(key).annotate(n=Count("*"))
    return Coalesce(Subquery(counted.values("n")), 0)
