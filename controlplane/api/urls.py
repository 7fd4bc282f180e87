"""The addresses of the API, below /api/v1/."""

import re

from django.urls import path, re_path, register_converter

from controlplane.api.agents import attempt_requests, store
from controlplane.api.operators import callbacks, cells, pools, quotas, secrets
from controlplane.api.problems import nothing_here
from controlplane.api.work import artifacts, attempts, dry_run, explain, history, jobs, tasks
from controlplane.spec.one_off import ONE_OFF_GUID


class IdConverter:
    """A number that the database can hold; anything else is no address."""

    regex = "[1-9][0-9]{0,17}"

    def to_python(self, value: str) -> int:
        """The number."""
        return int(value)

    def to_url(self, value: int) -> str:
        """Its text."""
        return str(value)


class NameConverter(IdConverter):
    """A name as cells and pools have it."""

    regex = "[a-z0-9][a-z0-9._-]{0,62}"

    def to_python(self, value: str) -> str:  # type: ignore[override]
        """The name."""
        return value


class ScopeKindConverter(NameConverter):
    """The kind of a scope with a quota."""

    regex = "user|project|domain"


class ScopeName(NameConverter):
    """A user's, a domain's, or a project's with that of its domain."""

    regex = r"[^\x00]{1,255}"


class TaskReference(IdConverter):
    """A task by its id, or by the guid that its client gave it (never of digits alone)."""

    regex = ONE_OFF_GUID

    def to_python(self, value: str) -> int | str:  # type: ignore[override]
        """The id or the guid; neither is there if it is digits that are no id."""
        return int(value) if re.fullmatch(IdConverter.regex, value) else value


register_converter(IdConverter, "id")
register_converter(NameConverter, "name")
register_converter(ScopeKindConverter, "scope_kind")
register_converter(ScopeName, "scope_name")
register_converter(TaskReference, "task")

urlpatterns = [
    path("jobs", jobs.Jobs.as_view()),
    path("jobs:batch", jobs.JobBatch.as_view()),
    path("jobs:dry-run", dry_run.JobDryRun.as_view()),
    path("jobs/<id:job_id>", jobs.JobDetail.as_view()),
    path("jobs/<id:job_id>/tasks", jobs.JobTasks.as_view()),
    path("jobs/<id:job_id>/history", history.JobHistory.as_view()),
    path("jobs/<id:job_id>/callbacks", callbacks.JobCallbacks.as_view()),
    path("jobs/<id:job_id>/cancel", jobs.JobCancel.as_view()),
    path("jobs/<id:job_id>/retry", jobs.JobRetry.as_view()),
    path("tasks", tasks.Tasks.as_view()),
    path("tasks/<task:task>", tasks.TaskDetail.as_view()),
    path("tasks/<task:task>/attempts", tasks.TaskAttempts.as_view()),
    path("tasks/<task:task>/history", history.TaskHistory.as_view()),
    path("tasks/<task:task>/explain", explain.TaskExplain.as_view()),
    path("tasks/<task:task>/cancel", tasks.TaskCancel.as_view()),
    path("tasks/<task:task>/resolving", tasks.TaskResolving.as_view()),
    path("attempts/<uuid:uid>", attempts.AttemptDetail.as_view()),
    path("attempts/<uuid:uid>/history", history.AttemptHistory.as_view()),
    path("attempts/<uuid:uid>/release", attempts.AttemptRelease.as_view()),
    path("attempts/<uuid:uid>/logs", attempts.AttemptLogs.as_view()),
    path("attempts/<uuid:uid>/logs/<slug:stream>", attempts.LogUpload.as_view()),
    path("attempts/<uuid:uid>/artifacts", artifacts.Artifacts.as_view()),
    path("attempts/<uuid:uid>/artifacts/<path:name>", artifacts.ArtifactDetail.as_view()),
    path("attempts/<uuid:uid>/briefing", attempt_requests.LaunchContextView.as_view()),
    path("attempts/<uuid:uid>/gang", attempt_requests.GangView.as_view()),
    path("callbacks/<id:callback_id>/repeat", callbacks.CallbackRepeat.as_view()),
    path("callback-key", callbacks.CallbackKeyView.as_view()),
    path("cells", cells.Cells.as_view()),
    path("cells/<name:name>", cells.CellDetail.as_view()),
    path("cells/<name:name>/cordon", cells.CellCordon.as_view()),
    path("cells/<name:name>/uncordon", cells.CellUncordon.as_view()),
    path("cells/<name:name>/drain", cells.CellDrain.as_view()),
    path("cells/<name:name>/unquarantine", cells.CellUnquarantine.as_view()),
    path("pools", pools.Pools.as_view()),
    path("pools/<name:name>", pools.PoolDetail.as_view()),
    path("pools/<name:name>/confirm-loss", pools.PoolConfirmLoss.as_view()),
    path("quotas", quotas.Quotas.as_view()),
    path("quotas/<scope_kind:kind>/<scope_name:name>", quotas.QuotaDetail.as_view()),
    path("secrets", secrets.Secrets.as_view()),
    path("secrets/<name:name>", secrets.SecretDetail.as_view()),
    path("store/inputs/<slug:digest>", store.StoredInput.as_view()),
    path("store/results/<id:group_id>", store.StoredResults.as_view()),
    path("store/outputs/<id:group_id>/<path:name>", store.StoredOutputs.as_view()),
    path("store/artifacts/<uuid:uid>/<path:name>", store.StoredArtifact.as_view()),
    re_path("", nothing_here),
]
