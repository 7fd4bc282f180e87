"""Every route that writes leaves an audit line: a table of requests by operation of the API."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Group, User
from django.test import Client

from controlplane import clock
from controlplane.contract.states import TaskState
from controlplane.domain.cache.keys import identity_of
from controlplane.domain.roles import Role
from controlplane.domain.state.states import CallbackState
from controlplane.models import (
    Alert,
    ApiToken,
    Attempt,
    AuditLine,
    BulkOperation,
    CacheEntry,
    Callback,
    Cell,
    CellLease,
    Job,
    Membership,
    NotificationAddress,
    NotificationRule,
    OidcIdentity,
    Pool,
    Project,
    Quota,
    Schedule,
    Secret,
    Task,
    TotpDevice,
)
from tests.integration.admin.rows import make_installation
from tests.integration.api.conftest import Answer, Caller, change_setting, make_caller

# Commands lock rows and send after commit.
pytestmark = pytest.mark.django_db(transaction=True)

JOB = {"name": "one", "image": "busybox", "command": ["true"], "allow_unsatisfiable": True}
ONE_OFF = {
    "guid": "one",
    "domain": "d",
    "definition": {"image": "busybox", "command": ["true"], "resources": {"cpu": 0.1}},
}
FROM_CELLS = {
    "announce_artifact",
    "put_artifact",
    "get_launch_context",
    "get_gang",
    "append_logs",
    "append_log_batch",
}
"""Operations of cells about their own attempts. The use of a secret has a test of its own."""

WRITES_NOTHING = {"dry_run_job", "preview_bulk_operation"}


@dataclass(frozen=True)
class Case:
    """A request that writes, and the line that it leaves.

    `subject`: with wildcards. `path`: a function makes the rows that the request needs.
    """

    method: str
    path: str | Callable[[Caller], str]
    action: str
    subject: str
    body: Any = None


def finished(caller: Caller) -> str:
    job = caller.post("/jobs", JOB).json["id"]
    caller.post(f"/jobs/{job}/cancel", {})
    return f"/jobs/{job}"


def completed(caller: Caller) -> str:
    caller.post("/tasks", ONE_OFF)
    caller.post("/tasks/one/cancel", {})
    return "/tasks/one"


def resolving(caller: Caller) -> str:
    path = completed(caller)
    return f"{path}?claim={caller.post(f'{path}/resolving').json['claim']}"


def held(caller: Caller) -> str:
    Pool.objects.filter(name="default").update(loss_held_at=clock.now())
    return "/pools/default/confirm-loss"


def unconfirmed(caller: Caller) -> str:
    attempt = Attempt.objects.get(task__state=TaskState.KILLED)
    Attempt.objects.filter(pk=attempt.pk).update(released_at=None, release_kind="")
    Task.objects.filter(pk=attempt.task_id).update(attempt_open=True)
    return f"/attempts/{attempt.pk}/release"


def callback(caller: Caller) -> str:
    return f"/callbacks/{Callback.objects.get(state=CallbackState.ABANDONED).pk}/repeat"


def notified(caller: Caller) -> str:
    path = "/notification-addresses/ops"
    caller.put(path, {"url": "json://example.org"})
    return path


def ruled(caller: Caller) -> str:
    notified(caller)
    path = "/notification-rules/night"
    caller.put(path, {"address": "ops", "about": "alerts"})
    return path


def scheduled(caller: Caller) -> str:
    caller.put("/schedules/nightly", {"cron": "@daily", "job": JOB})
    return "/schedules/nightly"


def paused(caller: Caller) -> str:
    path = scheduled(caller)
    caller.post(f"{path}/pause", {"reason": "audit"})
    return f"{path}/resume"


def cached(caller: Caller) -> str:
    project = Project.objects.get()
    identity = identity_of(f"project {project.pk}", "model:2031@1")
    CacheEntry.objects.update(identity=identity)
    return "/cache/model:2031@1"


def entered(caller: Caller) -> str:
    """The path of the exec sessions of a running attempt, whose cell has just sent a heartbeat."""
    attempt = Attempt.objects.filter(task__job__name="sweep", state=TaskState.RUNNING)[0]
    Cell.objects.filter(pk=attempt.cell_id).update(state="READY")
    now = clock.now()
    lease = {"incarnation": attempt.incarnation, "expires_at": now, "last_message_at": now}
    CellLease.objects.update_or_create(cell_id=attempt.cell_id, defaults=lease)
    return f"/attempts/{attempt.pk}/exec"


def session(caller: Caller) -> str:
    return f"/exec/{caller.post(entered(caller), {'command': ['sh']}).json['uid']}"


DOMAIN, PROJECT = "/domains/default", "/projects/default/default"
ROBOT = f"{PROJECT}/service-accounts/robot"
VIEWER = {"role": "viewer"}
NO_FIELDS: dict[str, str] = {}


def auditor(caller: Caller) -> str:
    caller.put("/auditors/users/ann", NO_FIELDS)
    return "/auditors/users/ann"


def member(caller: Caller, scope: str) -> str:
    path = f"{scope}/members/users/ann"
    caller.put(path, VIEWER)
    return path


def quota(caller: Caller) -> str:
    caller.put("/quotas/user/ann", {"running_tasks": 7})
    return "/quotas/user/ann"


def robot(caller: Caller) -> str:
    caller.put(ROBOT, VIEWER)
    return ROBOT


def held_job(caller: Caller) -> str:
    job = Job.objects.get(name="sweep").pk
    assert caller.post(f"/jobs/{job}/hold", {"reason": "wrong"}).status == 200
    return f"/jobs/{job}/release"


BULK = {"action": "cancel", "filter": {"pool": "default"}, "reason": "wrong"}


def running(caller: Caller) -> str:
    return f"/bulk/{caller.post('/bulk', BULK).json['id']}/stop"


def held_project(caller: Caller) -> str:
    assert caller.post(f"{PROJECT}/hold", {"reason": "late"}).status == 200
    return f"{PROJECT}/release"


CASES = {
    "submit_job": Case("POST", "/jobs", "submit.job", "job *", JOB),
    "submit_jobs": Case("POST", "/jobs:batch", "submit.job", "job *", [JOB]),
    "cancel_job": Case("POST", "/jobs/{job}/cancel", "cancel.job", "job *", {"reason": "wrong"}),
    "hold_job": Case("POST", "/jobs/{job}/hold", "hold.job", "job *", {"reason": "wrong"}),
    "release_job": Case("POST", held_job, "release.job", "job *", {"reason": "right"}),
    "move_job": Case("POST", "/jobs/{job}/move", "move.job", "job *", {"to": "front"}),
    "retry_job": Case("POST", lambda by: finished(by) + "/retry", "retry.job", "job *"),
    "delete_job": Case("DELETE", finished, "delete.job", "job *"),
    "start_bulk_operation": Case("POST", "/bulk", "start.bulk_operation", "bulk operation *", BULK),
    "stop_bulk_operation": Case("POST", running, "stop.bulk_operation", "bulk operation *"),
    "desire_task": Case("POST", "/tasks", "submit.task", "task one", ONE_OFF),
    "cancel_task": Case("POST", "/tasks/{task}/cancel", "cancel.task", "task *", {"force": True}),
    "resolve_task": Case("POST", lambda by: completed(by) + "/resolving", "claim.task", "task one"),
    "delete_task": Case("DELETE", resolving, "delete.task", "task one"),
    "release_attempt": Case(
        "POST", unconfirmed, "release.attempt", "attempt *", {"reason": "burnt"}
    ),
    "exec_attempt": Case("POST", entered, "exec.attempt", "attempt *", {"command": ["sh"]}),
    "end_exec_session": Case("DELETE", session, "end.exec_session", "exec session *"),
    "close_alert": Case(
        "POST",
        lambda by: f"/alerts/{Alert.objects.get().pk}/close",
        "close.alert",
        "alert *",
        {"reason": "known"},
    ),
    "evict_cache_entry": Case("DELETE", cached, "evict.cache_entry", "cache entry model:2031@1"),
    "repeat_callback": Case("POST", callback, "repeat.callback", "callback *"),
    "put_cell": Case("PUT", "/cells/cell-ready", "change.cell", "cell cell-ready", {"pool": "gpu"}),
    "cordon_cell": Case("POST", "/cells/cell-ready/cordon", "cordon.cell", "cell cell-ready"),
    "uncordon_cell": Case(
        "POST", "/cells/cell-cordoned/uncordon", "uncordon.cell", "cell cell-cordoned"
    ),
    "drain_cell": Case("POST", "/cells/cell-ready/drain", "drain.cell", "cell cell-ready"),
    "unquarantine_cell": Case(
        "POST",
        "/cells/cell-quarantined/unquarantine",
        "unquarantine.cell",
        "cell cell-quarantined",
    ),
    "put_pool": Case("PUT", "/pools/gpu", "change.pool", "pool gpu", {"strict_fifo": True}),
    "confirm_loss": Case("POST", held, "confirm.loss", "pool default"),
    "put_quota": Case(
        "PUT", "/quotas/user/ann", "change.quota", "quota of user ann", {"running_tasks": 7}
    ),
    "delete_quota": Case("DELETE", quota, "delete.quota", "quota of user ann"),
    "put_notification_address": Case(
        "PUT",
        "/notification-addresses/late",
        "create.notification_address",
        "notification address late",
        {"url": "json://example.org"},
    ),
    "delete_notification_address": Case(
        "DELETE", notified, "delete.notification_address", "notification address ops"
    ),
    "test_notification_address": Case(
        "POST",
        lambda by: f"{notified(by)}/test",
        "test.notification_address",
        "notification address ops",
        NO_FIELDS,
    ),
    "put_notification_rule": Case(
        "PUT",
        ruled,
        "change.notification_rule",
        "notification rule night",
        {"address": "ops", "about": "jobs"},
    ),
    "delete_notification_rule": Case(
        "DELETE", ruled, "delete.notification_rule", "notification rule night"
    ),
    "put_schedule": Case(
        "PUT",
        "/schedules/weekly",
        "create.schedule",
        "schedule weekly",
        {"cron": "@daily", "job": JOB},
    ),
    "delete_schedule": Case("DELETE", scheduled, "delete.schedule", "schedule nightly"),
    "pause_schedule": Case(
        "POST",
        lambda by: f"{scheduled(by)}/pause",
        "change.schedule",
        "schedule nightly",
        {"reason": "audit"},
    ),
    "resume_schedule": Case("POST", paused, "change.schedule", "schedule nightly", NO_FIELDS),
    "run_schedule": Case(
        "POST",
        lambda by: f"{scheduled(by)}/run",
        "run.schedule",
        "schedule nightly",
        NO_FIELDS,
    ),
    "put_secret": Case("PUT", "/secrets/token", "change.secret", "secret token", {"value": "x9y"}),
    "delete_secret": Case("DELETE", "/secrets/token", "delete.secret", "secret token"),
    "create_token": Case(
        "POST", "/tokens", "create.token", "token ci of olga", {"name": "ci", "role": "viewer"}
    ),
    "revoke_token": Case("DELETE", "/tokens/{token}", "revoke.token", "token laptop of ann"),
    "put_user": Case("PUT", "/users/ann", "change.user", "user ann", {"active": False}),
    "put_auditor": Case(
        "PUT", "/auditors/users/ann", "grant.role", "role of user ann on *", NO_FIELDS
    ),
    "delete_auditor": Case("DELETE", auditor, "remove.role", "role of user ann on *"),
    "put_domain_member": Case(
        "PUT", f"{DOMAIN}/members/users/ann", "grant.role", "role of user ann on *", VIEWER
    ),
    "delete_domain_member": Case(
        "DELETE", lambda by: member(by, DOMAIN), "remove.role", "role of user ann on *"
    ),
    "put_project": Case(
        "PUT", PROJECT, "change.project", "project default/default", {"archived": True}
    ),
    "hold_project": Case(
        "POST", f"{PROJECT}/hold", "hold.project", "project default/default", {"reason": "late"}
    ),
    "release_project": Case(
        "POST", held_project, "release.project", "project default/default", NO_FIELDS
    ),
    "put_project_member": Case(
        "PUT", f"{PROJECT}/members/users/ann", "grant.role", "role of user ann on *", VIEWER
    ),
    "delete_project_member": Case(
        "DELETE", lambda by: member(by, PROJECT), "remove.role", "role of user ann on *"
    ),
    "put_service_account": Case(
        "PUT", ROBOT, "create.service_account", "service account robot*", VIEWER
    ),
    "delete_service_account": Case(
        "DELETE", robot, "delete.service_account", "service account robot*"
    ),
}
"""operationId -> a request that writes. A new operation needs a row here."""


@pytest.fixture
def operator(settings: Any, tmp_path: Path) -> Caller:
    make_installation()
    Cell.objects.update(task_types=["container"])
    change_setting(settings, artifact_root=tmp_path / "artifacts")
    return make_caller("olga", Role.OPERATOR)


def send(caller: Caller, case: Case) -> Answer:
    known = {
        "job": Job.objects.get(name="sweep").pk,
        "task": Task.objects.get(job__name="sweep", state=TaskState.RUNNING).pk,
        "token": ApiToken.objects.get(name="laptop").pk,
    }
    path = case.path(caller) if callable(case.path) else case.path.format(**known)
    if case.body is None:
        return caller.send(case.method, path)
    return caller.post(path, case.body) if case.method == "POST" else caller.put(path, case.body)


def operations() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text()
    paths = yaml.load(text, Loader=yaml.CSafeLoader)["paths"]
    return {
        found["operationId"]: (method, path)
        for path, methods in paths.items()
        for method, found in methods.items()
        if method in ("post", "put", "patch", "delete")
    }


def test_every_operation_that_is_no_read_has_a_row() -> None:
    assert set(operations()) == set(CASES) | FROM_CELLS | WRITES_NOTHING


@pytest.mark.parametrize("name", CASES)
def test_a_write_leaves_an_audit_line(operator: Caller, name: str) -> None:
    case = CASES[name]
    answer = send(operator, case)
    assert answer.status in (200, 201, 202, 204), answer.content
    # A service account has a second line, about its role.
    line = AuditLine.objects.filter(action=case.action).order_by("pk").last()
    assert line is not None
    assert fnmatch(line.subject, case.subject)
    assert (line.actor, line.via, line.token) == ("olga", "token", "test")
    assert line.address == "127.0.0.1"


def bodies() -> dict[str, Any]:
    """The example of each operation with a body in JSON, from the committed description."""
    text = (Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text()
    paths = yaml.load(text, Loader=yaml.CSafeLoader)["paths"]
    contents = {
        found["operationId"]: found["requestBody"]["content"].get("application/json")
        for methods in paths.values()
        for found in methods.values()
        if "requestBody" in found
    }
    return {name: content.get("example") for name, content in contents.items() if content}


def test_every_body_has_an_example() -> None:
    assert [name for name, example in bodies().items() if example is None] == []


@pytest.mark.parametrize("name", sorted(set(bodies()) & set(CASES)))
def test_the_example_of_a_body_is_accepted(operator: Caller, name: str) -> None:
    answer = send(operator, replace(CASES[name], body=bodies()[name]))
    assert answer.status in (200, 201, 202, 204), answer.content


@pytest.mark.parametrize(
    ("name", "path"),
    [("dry_run_job", "/jobs:dry-run"), ("preview_bulk_operation", "/bulk:preview")],
)
def test_the_example_of_a_question_is_accepted(operator: Caller, name: str, path: str) -> None:
    assert set(bodies()) <= set(CASES) | {"dry_run_job", "preview_bulk_operation"}
    assert operator.post(path, bodies()[name]).status == 200


@dataclass(frozen=True)
class Action:
    """A POST of the admin about the rows `which`, and the action of the line that it leaves."""

    which: Callable[[], Any]
    action: str


def ended_job() -> int:
    path = finished(make_caller("olga-2", Role.OPERATOR))
    return int(path.removeprefix("/jobs/"))


def unreleased() -> Any:
    unconfirmed(Caller(None))
    return Attempt.objects.get(task__state=TaskState.KILLED).pk


def held_pool() -> int:
    held(Caller(None))
    return Pool.objects.get(name="default").pk


def cell(state: str) -> Callable[[], int]:
    return lambda: Cell.objects.get(name=f"cell-{state}").pk


def draining() -> int:
    Cell.objects.filter(name="cell-draining").update(ordered_state="DRAINING")
    return cell("draining")()


def job_to_release() -> int:
    held_job(make_caller("olga-2", Role.OPERATOR))
    return Job.objects.get(name="sweep").pk


def project_to_release() -> int:
    held_project(make_caller("olga-2", Role.OPERATOR))
    return Project.objects.get().pk


def archived() -> int:
    project = Project.objects.get()
    Project.objects.update(archived_at=clock.now())
    return project.pk


def user_with_second_factor() -> int:
    user = User.objects.get(username="ann")
    TotpDevice.objects.create(user=user, sealed=b"", last_step=0, created_at=clock.now())
    return user.pk


def address() -> int:
    return NotificationAddress.objects.get().pk


def schedule() -> int:
    # A run by hand submits as the owner, who must be a submitter.
    Schedule.objects.update(owner=User.objects.get(username="olga"))
    return Schedule.objects.get().pk


def paused_schedule() -> int:
    Schedule.objects.update(is_paused=True, next_at=None)
    return schedule()


def rule() -> int:
    return NotificationRule.objects.get().pk


ACTIONS = {
    ("job", "cancel_jobs"): Action(lambda: Job.objects.get(name="sweep").pk, "cancel.job"),
    ("job", "hold_jobs"): Action(lambda: Job.objects.get(name="sweep").pk, "hold.job"),
    ("job", "release_jobs"): Action(job_to_release, "release.job"),
    ("job", "move_to_front"): Action(lambda: Job.objects.get(name="sweep").pk, "move.job"),
    ("job", "move_to_end"): Action(lambda: Job.objects.get(name="sweep").pk, "move.job"),
    ("job", "change_band"): Action(lambda: Job.objects.get(name="sweep").pk, "move.job"),
    ("job", "retry_jobs"): Action(ended_job, "retry.job"),
    ("job", "delete_jobs"): Action(ended_job, "delete.job"),
    ("bulkoperation", "stop_operations"): Action(
        lambda: BulkOperation.objects.get().pk, "stop.bulk_operation"
    ),
    ("attempt", "release_attempts"): Action(unreleased, "release.attempt"),
    ("callback", "deliver_again"): Action(
        lambda: Callback.objects.get(state=CallbackState.ABANDONED).pk, "repeat.callback"
    ),
    ("cacheentry", "evict_entries"): Action(
        lambda: CacheEntry.objects.get().pk, "evict.cache_entry"
    ),
    ("cell", "drain"): Action(cell("ready"), "drain.cell"),
    ("cell", "change_deadline"): Action(draining, "drain.cell"),
    ("cell", "cordon"): Action(cell("ready"), "cordon.cell"),
    ("cell", "uncordon"): Action(cell("cordoned"), "uncordon.cell"),
    ("cell", "unquarantine"): Action(cell("quarantined"), "unquarantine.cell"),
    ("cell", "revoke"): Action(cell("ready"), "revoke.cell_key"),
    ("pool", "confirm_losses"): Action(held_pool, "confirm.loss"),
    ("alert", "close_alerts"): Action(lambda: Alert.objects.get().pk, "close.alert"),
    ("apitoken", "revoke"): Action(lambda: ApiToken.objects.get(name="laptop").pk, "revoke.token"),
    ("project", "hold"): Action(lambda: Project.objects.get().pk, "hold.project"),
    ("project", "release"): Action(project_to_release, "release.project"),
    ("project", "archive"): Action(lambda: Project.objects.get().pk, "change.project"),
    ("project", "unarchive"): Action(archived, "change.project"),
    ("oidcidentity", "unlink"): Action(lambda: OidcIdentity.objects.get().pk, "unlink.identity"),
    ("user", "reset_second_factor"): Action(user_with_second_factor, "reset.second_factor"),
    ("schedule", "pause"): Action(schedule, "change.schedule"),
    ("schedule", "resume"): Action(paused_schedule, "change.schedule"),
    ("schedule", "run_now"): Action(schedule, "run.schedule"),
    ("schedule", "delete_schedules"): Action(schedule, "delete.schedule"),
    ("notificationaddress", "send_tests"): Action(address, "test.notification_address"),
    ("notificationaddress", "delete_selected"): Action(address, "delete.notification_address"),
    ("notificationrule", "send_tests"): Action(rule, "test.notification_address"),
    ("notificationrule", "delete_selected"): Action(rule, "delete.notification_rule"),
    ("secret", "delete_selected"): Action(lambda: Secret.objects.get().pk, "delete.secret"),
    ("quota", "delete_selected"): Action(lambda: Quota.objects.get().pk, "delete.quota"),
    ("membership", "delete_selected"): Action(lambda: Membership.objects.get().pk, "remove.role"),
    ("group", "delete_selected"): Action(lambda: Group.objects.get().pk, "delete.group"),
    ("user", "delete_selected"): Action(lambda: User.objects.create_user("bob").pk, "delete.user"),
}
"""(model, action) -> a POST that writes. A new action of the admin needs a row here."""

OTHER_TESTS = {("cell", "enrolment")}
"""Its form has a test in `tests/integration/admin/test_actions.py`."""


@pytest.fixture
def browser(operator: Caller) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("otto"))
    return client


def last_line() -> AuditLine:
    line = AuditLine.objects.order_by("pk").last()
    assert line is not None
    return line


def test_every_action_of_the_admin_has_a_row(browser: Client) -> None:
    request = browser.get("/admin/").wsgi_request
    found = {
        (model._meta.model_name, name)
        for model, page in admin.site._registry.items()
        for name in page.get_actions(request)
    }
    assert found == set(ACTIONS) | OTHER_TESTS


@pytest.mark.parametrize(("model", "name"), ACTIONS)
def test_an_action_of_the_admin_leaves_an_audit_line(
    browser: Client, model: str, name: str
) -> None:
    case = ACTIONS[model, name]
    label = "auth" if model in ("user", "group") else "controlplane"
    sent = {"action": name, ACTION_CHECKBOX_NAME: [str(case.which())]}
    confirmed = {"post": "yes"} if name == "delete_selected" else {"confirmed": "yes"}
    browser.post(
        f"/admin/{label}/{model}/", {**sent, **confirmed, "reason": "burnt", "band": "batch"}
    )
    line = last_line()
    assert (line.action, line.actor, line.via) == (case.action, "otto", "session")


FORMS = {
    "/admin/controlplane/secret/add/": ({"name": "new", "value": "x9y"}, "create.secret"),
    "/admin/controlplane/secret/{secret}/change/": ({"value": "x9y"}, "change.secret"),
    "/admin/controlplane/secret/{secret}/delete/": ({"post": "yes"}, "delete.secret"),
    "/admin/controlplane/quota/add/": ({"running_jobs": "3"}, "create.quota"),
    "/admin/controlplane/quota/{quota}/change/": ({"running_jobs": "3"}, "change.quota"),
    "/admin/controlplane/quota/{quota}/delete/": ({"post": "yes"}, "delete.quota"),
    "/admin/controlplane/pool/add/": ({"name": "third"}, "create.pool"),
    "/admin/controlplane/pool/{pool}/change/": ({"strict_fifo": "on"}, "change.pool"),
    "/admin/controlplane/apitoken/add/": ({"name": "ci"}, "create.token"),
    "/admin/controlplane/oidcidentity/add/": (
        {"issuer": "https://login.example.org", "subject": "s-2"},
        "link.identity",
    ),
    "/admin/controlplane/project/add/": (
        {"domain": "", "new_domain": "research", "name": "vision"},
        "create.project",
    ),
    "/admin/controlplane/bulkoperation/add/": (
        {"action": "cancel", "pool": "default", "reason": "burnt"},
        "start.bulk_operation",
    ),
    "/admin/controlplane/notificationaddress/add/": (
        {"name": "late", "url": "json://x9y@example.org"},
        "create.notification_address",
    ),
    "/admin/controlplane/notificationaddress/{address}/edit/": (
        {"url": "json://x9y@example.org"},
        "change.notification_address",
    ),
    "/admin/controlplane/notificationaddress/{address}/delete/": (
        {"post": "yes"},
        "delete.notification_address",
    ),
    "/admin/controlplane/notificationrule/add/": (
        {"name": "late", "about": "jobs"},
        "create.notification_rule",
    ),
    "/admin/controlplane/notificationrule/{rule}/edit/": (
        {"only_critical": "on"},
        "change.notification_rule",
    ),
    "/admin/controlplane/notificationrule/{rule}/delete/": (
        {"post": "yes"},
        "delete.notification_rule",
    ),
    "/admin/controlplane/membership/add/": ({"role": "auditor"}, "grant.role"),
    "/admin/controlplane/membership/{membership}/change/": ({"role": "manager"}, "grant.role"),
    "/admin/controlplane/membership/{membership}/delete/": ({"post": "yes"}, "remove.role"),
    "/admin/auth/group/add/": ({"name": "late-shift"}, "create.group"),
    "/admin/auth/group/{group}/change/": ({"users": []}, "change.user"),
    "/admin/auth/group/{group}/delete/": ({"post": "yes"}, "delete.group"),
    "/admin/auth/user/add/": (
        {"username": "bob", "password1": "x9y x9y x9y x9y", "password2": "x9y x9y x9y x9y"},
        "create.user",
    ),
    "/admin/auth/user/{user}/change/": (
        {"is_staff": "on", "date_joined_0": "2031-05-04", "date_joined_1": "12:00:00"},
        "change.user",
    ),
    "/admin/auth/user/{user}/password/": (
        {"password1": "x9y x9y x9y x9y", "password2": "x9y x9y x9y x9y"},
        "change.user",
    ),
    "/admin/auth/user/{user}/delete/": ({"post": "yes"}, "delete.user"),
    "/account/password/": (
        {
            "old_password": "horse horse horse",
            "new_password1": "x9y x9y x9y x9y",
            "new_password2": "x9y x9y x9y x9y",
        },
        "change.user",
    ),
}
"""Forms of the admin: what is entered, and the action of the line that it leaves."""


def test_every_writable_page_of_the_admin_has_a_row(browser: Client) -> None:
    request = browser.get("/admin/").wsgi_request
    writable = set()
    for model, page in admin.site._registry.items():
        permissions = page.get_model_perms(request)
        for name in ("add", "change", "delete"):
            if permissions[name]:
                writable.add((model._meta.model_name, name))
    parts = [path.split("/") for path in FORMS]
    rows = {(names[3], names[-2].replace("edit", "change")) for names in parts}
    assert writable <= rows


@pytest.mark.parametrize("path", FORMS)
def test_a_form_of_the_admin_leaves_an_audit_line_without_passwords(
    browser: Client, path: str
) -> None:
    entered, action = FORMS[path]
    otto = User.objects.get(username="otto")
    otto.set_password("horse horse horse")
    otto.save()
    browser.force_login(otto)
    url = path.format(
        secret=Secret.objects.get().pk,
        quota=Quota.objects.get().pk,
        pool=Pool.objects.get(name="gpu").pk,
        user=User.objects.create_user("otto-2").pk,
        membership=Membership.objects.get().pk,
        group=Group.objects.get().pk,
        address=address(),
        rule=rule(),
    )
    shown = browser.get(url)
    form = shown.context["adminform"].form if "adminform" in shown.context else None
    fields = {} if form is None else {it.html_name: it.value() for it in form}
    fields = {name: value for name, value in fields.items() if value not in (None, False)}
    if "secret/add" in path:
        fields["project"] = Project.objects.get().pk
    if any(
        model in path
        for model in ("quota/add", "apitoken/add", "oidcidentity/add", "membership/add")
    ):
        fields["user"] = otto.pk
    if "notificationrule/add" in path:
        fields["address"] = address()
    answer = browser.post(url, {**fields, **entered})
    line = last_line()
    assert (line.action, line.actor, line.via) == (action, "otto", "session"), errors_of(answer)
    everything = json.dumps(list(AuditLine.objects.values()), default=str)
    assert "x9y" not in everything
    assert "pbkdf2" not in everything


def errors_of(answer: Any) -> Any:
    context = answer.context
    return context["adminform"].form.errors if context and "adminform" in context else answer
