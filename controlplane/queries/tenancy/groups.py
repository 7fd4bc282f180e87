"""Load groups of users: their first users, and the numbers of their users and roles."""

from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from controlplane.models import Membership
from controlplane.queries.sql import rows

_FIRST_USERS = """
SELECT g.id, coalesce(array_agg(u.username ORDER BY u.username)
                      FILTER (WHERE u.username IS NOT NULL), '{}')
FROM unnest(%(groups)s::int[]) AS g(id) LEFT JOIN LATERAL (
    SELECT username FROM auth_user JOIN auth_user_groups m ON m.user_id = auth_user.id
    WHERE m.group_id = g.id ORDER BY username LIMIT %(limit)s
) u ON true
GROUP BY g.id
"""


def list_users_of_groups(group_ids: Iterable[int], *, limit: int = 20) -> dict[int, list[str]]:
    """Return the names of the first users of each group, by name."""
    wanted = sorted(set(group_ids))
    if not wanted:
        return {}
    return dict(rows(_FIRST_USERS, {"groups": wanted, "limit": limit}))


def counted_groups(found: QuerySet[Group]) -> QuerySet[Group]:
    """Return groups with the number of their users and of their roles."""
    return found.annotate(
        user_count=_count(User.groups.through.objects, "group_id"),
        role_count=_count(Membership.objects, "group_id"),
    )


def _count(found: Any, key: str) -> Coalesce:
    """Return the number of rows whose `key` is the row's id; joins of both would multiply them."""
    counted = found.filter(**{key: OuterRef("pk")}).order_by().values(key).annotate(n=Count("*"))
    return Coalesce(Subquery(counted.values("n")), 0)
