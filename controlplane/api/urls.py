"""The URLs of the API, below /api/v1/."""

import re
from functools import partial
from typing import Any

from django.urls import URLPattern, path, re_path, register_converter
from django.urls.converters import IntConverter, StringConverter
from rest_framework.routers import SimpleRouter

from controlplane.api.agents import attempt_requests, store
from controlplane.api.exec import endpoints as exec_sessions
from controlplane.api.operators import (
    alerts,
    audit,
    callbacks,
    cells,
    pools,
    projects,
    quotas,
    secrets,
    tokens,
)
from controlplane.api.operators.notifications import endpoints
from controlplane.api.problems import nothing_here
from controlplane.api.work import attempts, bulk, cache, events, jobs, schedules, tasks, usage
from controlplane.spec.one_off import ONE_OFF_GUID


class IdConverter(IntConverter):
    """A number that fits the database's id column."""

    regex = "[1-9][0-9]{0,17}"


class NameConverter(StringConverter):
    """A name of a cell, pool, secret, domain or project."""

    regex = "[a-z0-9][a-z0-9._-]{0,62}"


class ScopeKindConverter(StringConverter):
    """The kind of a quota."""

    regex = "user|project|domain|default"


class ScopeName(StringConverter):
    """The name of a user or a domain; of a project, `domain/name`."""

    regex = r"[^\x00]{1,255}"


class UserName(StringConverter):
    """The name of a user, as Django permits it."""

    regex = r"[\w.@+-]{1,150}"


class MemberKind(StringConverter):
    """Whether a member is a user or a group."""

    regex = "users|groups"


class MemberName(StringConverter):
    """The name of a user or a group."""

    regex = r"[^\x00]{1,150}"


class TaskReference(StringConverter):
    """The id of a task, or its guid, which never consists of digits only."""

    regex = ONE_OFF_GUID

    def to_python(self, value: str) -> int | str:  # type: ignore[override]
        """Return the id or the guid; digits that are no valid id match no task."""
        return int(value) if re.fullmatch(IdConverter.regex, value) else value


class CacheKeyConverter(StringConverter):
    """The key of a cache entry."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._:=+@-]{0,329}"


register_converter(CacheKeyConverter, "cache_key")
register_converter(IdConverter, "id")
register_converter(MemberKind, "member_kind")
register_converter(MemberName, "member_name")
register_converter(NameConverter, "name")
register_converter(ScopeKindConverter, "scope_kind")
register_converter(ScopeName, "scope_name")
register_converter(TaskReference, "task")
register_converter(UserName, "user_name")

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("jobs", jobs.Jobs, basename="job")
router.register("tasks", tasks.Tasks, basename="task")
router.register("alerts", alerts.Alerts, basename="alert")
router.register("attempts", attempts.Attempts, basename="attempt")
router.register("bulk", bulk.BulkOperations, basename="bulk_operation")
router.register("cache", cache.CacheEntries, basename="cache_entry")
router.register("callbacks", callbacks.Callbacks, basename="callback")
router.register("cells", cells.Cells, basename="cell")
router.register(
    "notification-addresses",
    endpoints.NotificationAddresses,
    basename="notification_address",
)
router.register("notification-rules", endpoints.NotificationRules, basename="notification_rule")
router.register("exec", exec_sessions.ExecSessions, basename="exec_session")
router.register("pools", pools.Pools, basename="pool")
router.register("schedules", schedules.Schedules, basename="schedule")
router.register("secrets", secrets.Secrets, basename="secret")
router.register("tokens", tokens.ApiTokens, basename="token")
router.register("users", tokens.Users, basename="user")

_JOBS, _STORE = jobs.Jobs.as_view, store.Store.as_view
_CELLS = attempt_requests.CellRequests.as_view
_QUOTAS = partial(quotas.Quotas.as_view, basename="quota")
_ARTIFACTS = attempts.AttemptArtifacts.as_view
_PROJECTS = partial(projects.Projects.as_view, basename="project")
_ACCOUNTS = partial(projects.ServiceAccounts.as_view, basename="service_account")
_READ: dict[str, Any] = {"get": "retrieve", "put": "update"}
_CHANGE: dict[str, Any] = {"put": "update", "delete": "destroy"}
_PROJECT, _MEMBER = (
    "projects/<name:domain>/<name:project>",
    "<member_kind:members>/<member_name:name>",
)


def _members(prefix: str, view: type[projects.Members], basename: str) -> list[URLPattern]:
    """Return the URLs of a list of members and of each member."""
    return [
        path(prefix, view.as_view({"get": "list"}, basename=basename)),
        path(f"{prefix}/{_MEMBER}", view.as_view(_CHANGE, basename=basename)),
    ]


urlpatterns = [
    *router.urls,
    path("bulk:preview", bulk.BulkOperations.as_view({"post": "preview_bulk_operation"})),
    path("jobs:batch", _JOBS({"post": "submit_jobs"})),
    path("jobs:dry-run", _JOBS({"post": "dry_run_job"})),
    path(
        "jobs/<id:job_id>/callbacks",
        callbacks.Callbacks.as_view({"get": "list_callbacks_of_job"}),
    ),
    path(
        "attempts/<uuid:uid>/artifacts/<path:name>",
        _ARTIFACTS({"get": "read_artifact", "post": "announce_artifact", "put": "put_artifact"}),
    ),
    path(
        "attempts/<uuid:uid>/logs/<slug:stream>",
        attempts.LogUploads.as_view({"put": "append_logs"}),
    ),
    path("logs:batch", attempts.LogBatches.as_view({"post": "append_log_batch"})),
    path("attempts/<uuid:uid>/briefing", _CELLS({"post": "get_launch_context"})),
    path("attempts/<uuid:uid>/gang", _CELLS({"post": "get_gang"})),
    path(
        "attempts/<uuid:uid>/exec",
        exec_sessions.ExecSessionsOfAttempt.as_view(
            {"get": "list_exec_sessions", "post": "exec_attempt"}
        ),
    ),
    path("callback-key", callbacks.CallbackKeys.as_view({"get": "get_callback_key"})),
    path(
        "tasks/<task:task>/artifacts/<path:name>",
        tasks.Tasks.as_view({"get": "read_artifact_of_task"}),
    ),
    path("audit", audit.AuditLog.as_view({"get": "list"})),
    path("events", events.Events.as_view({"get": "list"})),
    path("usage", usage.Usage.as_view({"get": "list"})),
    path("usage.csv", usage.Usage.as_view({"get": "read_usage_csv"})),
    path("whoami", tokens.Identity.as_view({"get": "get_whoami"})),
    path("quotas", _QUOTAS({"get": "list"})),
    path(
        "quotas/<scope_kind:kind>/<scope_name:name>",
        _QUOTAS({**_READ, **_CHANGE}),
    ),
    path("projects", _PROJECTS({"get": "list"})),
    path(_PROJECT, _PROJECTS(_READ)),
    path(f"{_PROJECT}/hold", _PROJECTS({"post": "hold_project"})),
    path(f"{_PROJECT}/release", _PROJECTS({"post": "release_project"})),
    path(f"{_PROJECT}/service-accounts", _ACCOUNTS({"get": "list"})),
    path(f"{_PROJECT}/service-accounts/<user_name:name>", _ACCOUNTS({**_READ, **_CHANGE})),
    *_members(f"{_PROJECT}/members", projects.ProjectMembers, "project_member"),
    *_members("domains/<name:domain>/members", projects.DomainMembers, "domain_member"),
    *_members("auditors", projects.Auditors, "auditor"),
    path("store/inputs/<slug:digest>", _STORE({"get": "read_input"})),
    path("store/results/<id:group_id>", _STORE({"get": "read_results"})),
    path("store/outputs/<id:group_id>/<path:name>", _STORE({"get": "read_outputs"})),
    path("store/artifacts/<uuid:uid>/<path:name>", _STORE({"get": "read_stored_artifact"})),
    re_path("", nothing_here),
]
