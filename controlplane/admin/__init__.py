"""The operators' pages: all jobs, tasks, attempts and cells, their history, a few actions."""

from django.contrib import admin

from controlplane.admin import (
    accounts,
    attempts,
    cells,
    jobs,
    operations,
    overview,
    pools,
    quotas,
    secrets,
    tasks,
)

__all__ = [
    "accounts",
    "attempts",
    "cells",
    "jobs",
    "operations",
    "overview",
    "pools",
    "quotas",
    "secrets",
    "tasks",
]

admin.site.site_title = "Cellrun"
admin.site.site_header = "Cellrun"
admin.site.index_title = "Overview"
admin.site.index_template = "controlplane/index.html"
