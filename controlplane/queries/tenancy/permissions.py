"""Decide which users may log in and use the admin, and what auditors may view there."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User

from controlplane.queries.tenancy.access import is_auditor

_CACHE = "_is_auditor"


def may_log_in(user: Any) -> bool:
    """Return whether a user may have a session: active ones may, except service accounts."""
    return isinstance(user, User) and user.is_active and not hasattr(user, "service_account")


def may_use_admin(user: Any) -> bool:
    """Return whether a user may use the admin: staff and auditors may."""
    return may_log_in(user) and (user.is_staff or _audits(user))


class AccountBackend(ModelBackend):
    """Django's users and permissions; auditors may view everything, service accounts nothing."""

    def user_can_authenticate(self, user: Any) -> bool:
        """Return whether the user may begin a session, and continue one."""
        return may_log_in(user)

    def get_user(self, user_id: int) -> Any:
        """Return the user of a session, by one query; None if it may have none any more."""
        users = User.objects.select_related("service_account", "totp_device")
        user = users.defer("totp_device__sealed").filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        """Return whether the user has a permission; auditors have those to view."""
        if super().has_perm(user_obj, perm, obj):
            return True
        is_view = perm.partition(".")[2].startswith("view_")
        return is_view and isinstance(user_obj, User) and user_obj.is_active and _audits(user_obj)

    def has_module_perms(self, user_obj: Any, app_label: str) -> bool:
        """Return whether the user may view some page of an app."""
        return super().has_module_perms(user_obj, app_label) or may_use_admin(user_obj)


def _audits(user: User) -> bool:
    """Return whether the user is an auditor, with one query for each loaded user."""
    found = user.__dict__
    if _CACHE not in found:
        found[_CACHE] = is_auditor(user)
    return bool(found[_CACHE])
