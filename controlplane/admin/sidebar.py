"""The sidebar (Work, Cells, Access, System) and the user's menu: SIDEBAR and ACCOUNT of unfold."""

import re
from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from controlplane.queries.views.overviews import count_open_alerts

QUEUE_PERMISSIONS = ("controlplane.view_pool", "controlplane.view_job")
"""What a user needs to see the queue of a pool."""

_QUEUE = re.compile("/admin/controlplane/pool/[0-9]+/queue/")

_SECTIONS: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "Work",
        (
            ("Jobs", "stacks", "controlplane_job"),
            ("Tasks", "checklist", "controlplane_task"),
            ("Attempts", "replay", "controlplane_attempt"),
            ("One-off tasks", "looks_one", "controlplane_oneoff"),
            ("Callbacks", "call_made", "controlplane_callback"),
            ("Cache", "cached", "controlplane_cacheentry"),
            ("Schedules", "event_repeat", "controlplane_schedule"),
            ("Bulk operations", "dynamic_feed", "controlplane_bulkoperation"),
        ),
    ),
    (
        "Cells",
        (
            ("Cells", "dns", "controlplane_cell"),
            ("Pools", "hub", "controlplane_pool"),
            ("Quotas", "speed", "controlplane_quota"),
        ),
    ),
    (
        "Access",
        (
            ("Domains", "domain", "controlplane_domain"),
            ("Projects", "folder_shared", "controlplane_project"),
            ("Memberships", "badge", "controlplane_membership"),
            ("Groups", "groups", "auth_group"),
            ("Users", "person", "auth_user"),
            ("OpenID identities", "link", "controlplane_oidcidentity"),
            ("API tokens", "key", "controlplane_apitoken"),
            ("Secrets", "lock", "controlplane_secret"),
        ),
    ),
    (
        "System",
        (
            ("Alerts", "notifications", "controlplane_alert"),
            ("Notification rules", "campaign", "controlplane_notificationrule"),
            ("Notification addresses", "alternate_email", "controlplane_notificationaddress"),
            ("Notification messages", "outbox", "controlplane_notificationmessage"),
            ("Dead letters", "mark_email_unread", "controlplane_deadletter"),
            ("Ticks", "timer", "controlplane_tickstate"),
            ("Tick runs", "history", "controlplane_tickrun"),
            ("Audit log", "gavel", "controlplane_auditline"),
        ),
    ),
)


def list_apps_lazily(site: AdminSite) -> None:
    """Make a site list its apps and models when a page shows them: the sidebar has its own list."""
    list_apps = site.get_app_list

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> Any:
        return SimpleLazyObject(lambda: list_apps(request, app_label))

    site.get_app_list = get_app_list  # type: ignore[method-assign]


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sections with the items that the user may view; Alerts has a count."""
    overview = {"title": "Overview", "icon": "monitoring", "link": reverse("admin:index")}
    alerts = count_open_alerts()
    sections: list[dict[str, Any]] = [{"items": [overview]}]
    for title, items in _SECTIONS:
        seen = [*_queue_item(request), *_job_items(request)] if title == "Work" else []
        seen += [
            {
                "title": name,
                "icon": icon,
                "link": reverse(f"admin:{model}_changelist"),
                **({"badge": str(alerts)} if name == "Alerts" and alerts else {}),
            }
            for name, icon, model in items
            if request.user.has_perm(_view_permission(model))
        ]
        if title == "System":
            seen += _flower_item(request)
        if seen:
            sections.append({"title": title, "separator": True, "items": seen})
    _mark_active(request.path, [item for section in sections for item in section["items"]])
    return sections


def _mark_active(path: str, items: list[dict[str, Any]]) -> None:
    """Mark the item with the longest address that the path begins with.

    The queue of each pool belongs to the item of the queue. The overview is active on its own page
    only, since all pages are below it.
    """
    if _QUEUE.fullmatch(path):
        path = reverse("admin:controlplane_pool_first_queue")
    found = [item["link"] for item in items if path.startswith(item["link"])]
    longest = max(found, key=len, default="")
    is_other = longest == reverse("admin:index") != path
    for item in items:
        item["active"] = item["link"] == longest and not is_other


def _queue_item(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the item of the queue for users who may see it."""
    if not request.user.has_perms(QUEUE_PERMISSIONS):
        return []
    address = reverse("admin:controlplane_pool_first_queue")
    return [{"title": "Queue", "icon": "format_list_numbered", "link": address}]


def _job_items(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the items of the activity and the usage for users that may see jobs."""
    if not request.user.has_perm("controlplane.view_job"):
        return []
    return [
        {"title": "Activity", "icon": "timeline", "link": reverse("admin:controlplane_activity")},
        {"title": "Usage", "icon": "bar_chart", "link": reverse("admin:controlplane_usage")},
    ]


def _flower_item(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the item of Flower, which has a login of its own, for users who may see ticks."""
    address = settings.CELLRUN.flower_url
    if not address or not request.user.has_perm("controlplane.view_tickstate"):
        return []
    return [{"title": "Flower", "icon": "local_florist", "link": f"{address}/workers"}]


def _view_permission(model: str) -> str:
    app, _, name = model.partition("_")
    return f"{app}.view_{name}"


def account_links(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the links of the user's menu; those to password and factor only for local users."""
    account = {"title": "Account and tokens", "link": reverse("account")}
    if not isinstance(request.user, User) or not request.user.has_usable_password():
        return [account]
    return [
        account,
        {"title": "Change password", "link": reverse("account_password")},
        {"title": "Second factor", "link": reverse("totp_enroll")},
    ]
