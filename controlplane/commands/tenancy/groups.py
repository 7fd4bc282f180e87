"""Create and delete groups of users, and put users into them."""

from collections.abc import Collection
from datetime import datetime

from django.contrib.auth.models import Group, User
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.tenancy.accounts import describe_user, record_user
from controlplane.commands.tenancy.members import remove_all_roles
from controlplane.domain.errors import NotFound


def create_group(*, name: str, actor: str, now: datetime) -> None:
    """Create a group of users, which has no users yet. Idempotent."""
    with transaction.atomic():
        _, is_new = Group.objects.get_or_create(name=name)
        if is_new:
            record(AuditEntry(Action.CREATE_GROUP, f"group {name}"), actor=actor, now=now)


def set_group_users(*, group_id: int, user_ids: Collection[int], actor: str, now: datetime) -> None:
    """Put these users into a group and remove all others. Raise NotFound."""
    with transaction.atomic():
        _set_users(_lock_group(group_id), frozenset(user_ids), actor, now)


def delete_group(*, group_id: int, actor: str, now: datetime) -> None:
    """Delete a group with its roles; its users remain. Raise NotFound."""
    with transaction.atomic():
        group = _lock_group(group_id)
        remove_all_roles(group, actor=actor, now=now)
        _set_users(group, frozenset(), actor, now)
        record(AuditEntry(Action.DELETE_GROUP, f"group {group.name}"), actor=actor, now=now)
        group.delete()


def _lock_group(group_id: int) -> Group:
    group = Group.objects.select_for_update().filter(pk=group_id).first()
    if group is None:
        raise NotFound("the group does not exist any more")
    return group


def _set_users(group: Group, wanted: frozenset[int], actor: str, now: datetime) -> None:
    present = frozenset(group.user_set.values_list("pk", flat=True))
    moved = User.objects.select_for_update().filter(pk__in=present ^ wanted)
    for user in moved.order_by("pk"):
        before = describe_user(user)
        if user.pk in wanted:
            user.groups.add(group)
        else:
            user.groups.remove(group)
        record_user(user, before, actor=actor, now=now)
