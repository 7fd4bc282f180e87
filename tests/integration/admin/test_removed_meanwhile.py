"""Deletions of users and groups while others remove what belongs to them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, connection, transaction
from django.test import Client

from controlplane.commands.tenancy.accounts import delete_users
from controlplane.commands.tenancy.groups import delete_group
from controlplane.commands.tenancy.members import MemberScope, put_member, remove_member
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, Membership, Project
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import words

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def once(part: str, act: Callable[[], Any], *, before: bool = False) -> Iterator[None]:
    """Run `act` on another connection beside the first statement that contains `part`."""
    left = [act]

    def on_another_connection() -> None:
        try:
            left.pop()()
        finally:
            connection.close()

    def run() -> None:
        thread = Thread(target=on_another_connection)
        thread.start()
        thread.join()

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        is_due = bool(left) and part in sql
        if is_due and before:
            run()
        result = execute(sql, params, many, context)
        if is_due and not before:
            run()
        return result

    with connection.execute_wrapper(watch):
        yield
    assert not left


def test_user_is_deleted_while_its_role_is_removed(installation: None) -> None:
    user = User.objects.create_user("user-1")
    scope = MemberScope(project=Project.objects.get())
    put_member(scope=scope, member=user, role=Role.VIEWER, actor="test", now=NOW)
    refused: list[str] = []

    def remove() -> None:
        try:
            with transaction.atomic():
                Membership.objects.select_for_update(nowait=True).get(user=user).delete()
        except DatabaseError as error:
            refused.append(str(error))

    with once('FROM "controlplane_membership"', remove):
        delete_users([user.pk])
    assert not User.objects.filter(pk=user.pk).exists()
    assert "could not obtain lock" in refused[0]
    assert AuditLine.objects.filter(action="remove.role", actor="system").count() == 1


def test_page_reports_that_the_group_was_deleted_meanwhile(operator: Client) -> None:
    group = Group.objects.get()

    def delete() -> None:
        delete_group(group_id=group.pk, actor="test", now=NOW)

    with once("FOR UPDATE", delete, before=True):
        address = f"/admin/auth/group/{group.pk}/delete/"
        answer = operator.post(address, {"post": "yes"}, follow=True)
    assert answer.redirect_chain == [("/admin/auth/group/", 302)]
    assert "the group does not exist any more" in words(answer.content.decode())


def test_selected_groups_are_deleted_although_one_was_deleted_meanwhile(operator: Client) -> None:
    first = Group.objects.get()
    second, third = (Group.objects.create(name=f"z{n}") for n in range(2))
    chosen = {"_selected_action": [first.pk, second.pk, third.pk]}

    def delete() -> None:
        delete_group(group_id=second.pk, actor="test", now=NOW)

    with once('DELETE FROM "auth_group"', delete):
        answer = operator.post(
            "/admin/auth/group/", {**chosen, "action": "delete_selected", "post": "yes"}
        )
    assert answer.status_code == 302
    assert not Group.objects.exists()


def test_selected_roles_are_removed_although_one_was_removed_meanwhile(operator: Client) -> None:
    scope = MemberScope(project=Project.objects.get())
    users = [User.objects.create_user(f"user-{n}") for n in range(3)]
    for user in users:
        put_member(scope=scope, member=user, role=Role.VIEWER, actor="test", now=NOW)
    found = Membership.objects.filter(user__in=users)
    chosen = {"_selected_action": list(found.values_list("pk", flat=True))}

    def remove() -> None:
        remove_member(scope=scope, member=users[1], actor="test", now=NOW)

    with once('DELETE FROM "controlplane_membership"', remove):
        answer = operator.post(
            "/admin/controlplane/membership/",
            {**chosen, "action": "delete_selected", "post": "yes"},
        )
    assert answer.status_code == 302
    assert not found.exists()
