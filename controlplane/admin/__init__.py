"""Admin pages for operators: jobs, tasks, attempts, cells, their history and actions on them."""

from django.contrib import admin

from controlplane.admin import operations, pools, quotas, schedules, ticks
from controlplane.admin.alerts import page as alerts
from controlplane.admin.cells import pages as cells
from controlplane.admin.login import identities
from controlplane.admin.login.form import LoginForm
from controlplane.admin.login.sessions import has_permission
from controlplane.admin.notifications import addresses, rules
from controlplane.admin.notifications import messages as notification_messages
from controlplane.admin.overview.page import show_overview
from controlplane.admin.sidebar import list_apps_lazily
from controlplane.admin.tenancy import groups, members, projects, secrets, tokens, users
from controlplane.admin.work import attempts, bulk, cache, callbacks, jobs, one_offs, tasks

__all__ = [
    "addresses",
    "alerts",
    "attempts",
    "bulk",
    "cache",
    "callbacks",
    "cells",
    "groups",
    "identities",
    "jobs",
    "members",
    "notification_messages",
    "one_offs",
    "operations",
    "pools",
    "projects",
    "quotas",
    "rules",
    "schedules",
    "secrets",
    "tasks",
    "ticks",
    "tokens",
    "users",
]

list_apps_lazily(admin.site)
admin.site.login_form = LoginForm
admin.site.has_permission = has_permission  # type: ignore[method-assign]
admin.site.index = show_overview  # type: ignore[assignment, method-assign]
admin.site.site_title = "Cellrun"
admin.site.site_header = "Cellrun"
admin.site.index_title = "Overview"
admin.site.index_template = "controlplane/index.html"
