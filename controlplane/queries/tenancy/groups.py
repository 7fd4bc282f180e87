"""Load groups of users: their first users, and the numbers of their users and roles."""

from collections.abc import Iterable

from django.contrib.auth.models import Group, User
from django.db.models import QuerySet

from controlplane.models import Membership
from controlplane.queries.related_counts import count_by
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
        user_count=count_by(User.groups.through.objects, "group_id"),
        role_count=count_by(Membership.objects, "group_id"),
    )
