"""Every route of the API as each role, on work of the own and of another project.

The rows list what a role permits, in the terms of docs/projects.md; a route without a row fails.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from django.contrib.auth.models import Group
from django.db import transaction

from controlplane import clock
from controlplane.commands.notifications.configure import RuleFields, put_address, put_rule
from controlplane.commands.tenancy.secrets import put_secret
from controlplane.commands.tenancy.service_accounts import put_service_account
from controlplane.contract.states import TaskState
from controlplane.domain.cache.keys import identity_of
from controlplane.domain.roles import AUDITOR, Role
from controlplane.models import (
    Alert,
    ApiToken,
    Attempt,
    CacheEntry,
    Callback,
    Cell,
    Domain,
    ExecSession,
    Membership,
    Project,
    Quota,
    Task,
)
from tests.integration.api.conftest import Answer, Caller, change_setting, make_caller
from tests.integration.api.test_reading import place

JOB = {"name": "sweep", "image": "busybox", "command": ["true"]}
ONE_OFF = {
    "guid": "new-task",
    "domain": "d",
    "project": "default/lab",
    "definition": {"image": "busybox", "command": ["true"]},
}
SCHEDULE = {"cron": "@daily", "job": JOB}
BULK = {"action": "cancel", "filter": {"project": "default/lab"}}

# The callers of each row, in this order. All but `outsider` and the last two are members of the
# project `lab`; `outsider` is a manager of the project `default` in the same domain.
ROLES = ("outsider", "viewer", "submitter", "owner", "manager", "auditor", "operator")

OK, DENIED, ABSENT = "ok", 403, 404
"""`ok`: the wall lets the request through; the state of the object may still refuse it."""

READ = (ABSENT, OK, OK, OK, OK, OK, OK)
CHANGE = (ABSENT, DENIED, DENIED, OK, OK, DENIED, OK)
USE = (ABSENT, DENIED, OK, OK, OK, DENIED, OK)
MANAGE = (ABSENT, DENIED, DENIED, DENIED, OK, DENIED, OK)
AUDIT = (DENIED, DENIED, DENIED, DENIED, DENIED, OK, OK)
OPERATE = (DENIED, DENIED, DENIED, DENIED, DENIED, DENIED, OK)
DOMAIN = (ABSENT, DENIED, ABSENT, ABSENT, ABSENT, DENIED, OK)
"""Members of a domain, on which only the auditor and the operator have a role."""
ANY = (OK,) * 7
"""Every user: lists, which other tests compare, and what the user itself owns."""
WRITE = (OK, DENIED, OK, OK, OK, OK, OK)
"""Objects of the user itself: they need a token that is not for reading only."""
# Members and service accounts: managers, and auditors to read.
MANAGERS = (ABSENT, DENIED, DENIED, DENIED, OK, OK, OK)
# No caller but auditor and operator has a role on the whole domain.
DOMAIN, DOMAIN_WRITE = (*(ABSENT,) * 5, OK, OK), (ABSENT, DENIED, *(ABSENT,) * 3, DENIED, OK)
SIGNED, LINKED = (401,) * 7, (403,) * 7
"""Cells sign these requests, or present links; a token does not help."""
# A project that a caller may not read is reported as one that does not exist.
SUBMIT = (422, DENIED, OK, OK, OK, DENIED, OK)

START = (ABSENT, DENIED, OK, OK, OK, OK, OK)
"""Bulk operations, which other tests compare: they process what the caller may change."""

Expected = tuple[str | int, ...]
LAB = "domain=default&project=lab"

ROUTES: Mapping[tuple[str, str], tuple[Expected, str, Any]] = {
    # (method, path in the description): what each role gets, the path of a request, its body.
    ("get", "/alerts"): (AUDIT, "/alerts", None),
    ("get", "/alerts/{alert_id}"): (AUDIT, "/alerts/{alert}", None),
    ("post", "/alerts/{alert_id}/close"): (OPERATE, "/alerts/{alert}/close", {}),
    ("get", "/attempts/{uid}"): (READ, "/attempts/{uid}", None),
    ("get", "/attempts/{uid}/artifacts"): (READ, "/attempts/{uid}/artifacts", None),
    ("get", "/attempts/{uid}/artifacts/{name}"): (READ, "/attempts/{uid}/artifacts/model", None),
    ("post", "/attempts/{uid}/artifacts/{name}"): (SIGNED, "/attempts/{uid}/artifacts/x", None),
    ("put", "/attempts/{uid}/artifacts/{name}"): (SIGNED, "/attempts/{uid}/artifacts/x", None),
    ("post", "/attempts/{uid}/briefing"): (SIGNED, "/attempts/{uid}/briefing", None),
    ("post", "/attempts/{uid}/gang"): (SIGNED, "/attempts/{uid}/gang", None),
    ("get", "/attempts/{uid}/history"): (READ, "/attempts/{uid}/history", None),
    ("get", "/attempts/{uid}/logs"): (READ, "/attempts/{uid}/logs", None),
    ("put", "/attempts/{uid}/logs/{stream}"): (SIGNED, "/attempts/{uid}/logs/stdout", None),
    ("post", "/logs:batch"): (SIGNED, "/logs:batch", None),
    ("get", "/attempts/{uid}/exec"): (READ, "/attempts/{uid}/exec", None),
    ("post", "/attempts/{uid}/exec"): (CHANGE, "/attempts/{uid}/exec", {"command": ["sh"]}),
    ("post", "/attempts/{uid}/release"): (OPERATE, "/attempts/{uid}/release", {"reason": "gone"}),
    ("get", "/audit"): (AUDIT, "/audit", None),
    ("get", "/auditors"): (AUDIT, "/auditors", None),
    ("put", "/auditors/{members}/{name}"): (OPERATE, "/auditors/users/viewer", {}),
    ("delete", "/auditors/{members}/{name}"): (OPERATE, "/auditors/groups/auditors", None),
    ("get", "/bulk"): (ANY, "/bulk", None),
    ("post", "/bulk"): (START, "/bulk", {**BULK, "reason": "x"}),
    ("post", "/bulk:preview"): (START, "/bulk:preview", BULK),
    ("get", "/bulk/{operation_id}"): (
        (*(ABSENT,) * 3, OK, ABSENT, OK, OK),
        "/bulk/{operation}",
        None,
    ),
    ("post", "/bulk/{operation_id}/stop"): (
        (ABSENT, DENIED, ABSENT, OK, ABSENT, DENIED, OK),
        "/bulk/{operation}/stop",
        None,
    ),
    ("get", "/cache"): (READ, f"/cache?{LAB}", None),
    ("get", "/cache/{key}"): (READ, f"/cache/k@1?{LAB}", None),
    ("delete", "/cache/{key}"): (CHANGE, f"/cache/k@1?{LAB}", None),
    ("get", "/callback-key"): (WRITE, "/callback-key", None),
    ("post", "/callbacks/{callback_id}/repeat"): (CHANGE, "/callbacks/{callback}/repeat", None),
    ("get", "/cells"): (ANY, "/cells", None),
    ("get", "/cells/{name}"): (ANY, "/cells/cell-1", None),
    ("put", "/cells/{name}"): (OPERATE, "/cells/cell-1", {}),
    ("post", "/cells/{name}/cordon"): (OPERATE, "/cells/cell-1/cordon", None),
    ("post", "/cells/{name}/drain"): (OPERATE, "/cells/cell-1/drain", None),
    ("post", "/cells/{name}/uncordon"): (OPERATE, "/cells/cell-1/uncordon", None),
    ("post", "/cells/{name}/unquarantine"): (OPERATE, "/cells/cell-1/unquarantine", None),
    ("get", "/domains/{domain}/members"): (DOMAIN, "/domains/default/members", None),
    ("put", "/domains/{domain}/members/{members}/{name}"): (
        DOMAIN_WRITE,
        "/domains/default/members/users/viewer",
        {"role": "viewer"},
    ),
    ("delete", "/domains/{domain}/members/{members}/{name}"): (
        DOMAIN_WRITE,
        "/domains/default/members/groups/auditors",
        None,
    ),
    ("get", "/events"): (READ, "/events?project=default/lab", None),
    ("get", "/exec/{session}"): (READ, "/exec/{exec_session}", None),
    ("delete", "/exec/{session}"): (CHANGE, "/exec/{exec_session}", None),
    ("get", "/jobs"): (ANY, "/jobs", None),
    ("post", "/jobs"): (SUBMIT, "/jobs", {**JOB, "project": "lab"}),
    ("get", "/jobs/{job_id}"): (READ, "/jobs/{job}", None),
    ("delete", "/jobs/{job_id}"): (CHANGE, "/jobs/{job}", None),
    ("get", "/jobs/{job_id}/artifacts"): (READ, "/jobs/{job}/artifacts", None),
    ("get", "/jobs/{job_id}/callbacks"): (READ, "/jobs/{job}/callbacks", None),
    ("post", "/jobs/{job_id}/cancel"): (CHANGE, "/jobs/{job}/cancel", {}),
    ("post", "/jobs/{job_id}/hold"): (CHANGE, "/jobs/{job}/hold", {"reason": "x"}),
    ("post", "/jobs/{job_id}/release"): (CHANGE, "/jobs/{job}/release", {}),
    ("post", "/jobs/{job_id}/move"): (CHANGE, "/jobs/{job}/move", {"to": "end"}),
    ("get", "/jobs/{job_id}/history"): (READ, "/jobs/{job}/history", None),
    ("post", "/jobs/{job_id}/retry"): (CHANGE, "/jobs/{job}/retry", None),
    ("get", "/jobs/{job_id}/tasks"): (READ, "/jobs/{job}/tasks", None),
    ("post", "/jobs:batch"): (SUBMIT, "/jobs:batch", [{**JOB, "project": "lab"}]),
    ("post", "/jobs:dry-run"): (SUBMIT, "/jobs:dry-run", {**JOB, "project": "lab"}),
    ("get", "/pools"): (ANY, "/pools", None),
    ("get", "/pools/{name}"): (ANY, "/pools/default", None),
    ("get", "/pools/{name}/queue"): (ANY, "/pools/default/queue", None),
    ("put", "/pools/{name}"): (OPERATE, "/pools/default", {}),
    ("post", "/pools/{name}/confirm-loss"): (OPERATE, "/pools/default/confirm-loss", None),
    ("get", "/projects"): (ANY, "/projects", None),
    ("get", "/projects/{domain}/{project}"): (READ, "/projects/default/lab", None),
    ("put", "/projects/{domain}/{project}"): (
        MANAGE,
        "/projects/default/lab",
        {"archived": True},
    ),
    ("post", "/projects/{domain}/{project}/hold"): (
        MANAGE,
        "/projects/default/lab/hold",
        {"reason": "x"},
    ),
    ("post", "/projects/{domain}/{project}/release"): (
        MANAGE,
        "/projects/default/lab/release",
        None,
    ),
    ("get", "/projects/{domain}/{project}/members"): (
        MANAGERS,
        "/projects/default/lab/members",
        None,
    ),
    ("put", "/projects/{domain}/{project}/members/{members}/{name}"): (
        MANAGE,
        "/projects/default/lab/members/users/outsider",
        {"role": "viewer"},
    ),
    ("delete", "/projects/{domain}/{project}/members/{members}/{name}"): (
        MANAGE,
        "/projects/default/lab/members/users/viewer",
        None,
    ),
    ("get", "/projects/{domain}/{project}/service-accounts"): (
        MANAGERS,
        "/projects/default/lab/service-accounts",
        None,
    ),
    ("get", "/projects/{domain}/{project}/service-accounts/{name}"): (
        MANAGERS,
        "/projects/default/lab/service-accounts/robot",
        None,
    ),
    ("put", "/projects/{domain}/{project}/service-accounts/{name}"): (
        MANAGE,
        "/projects/default/lab/service-accounts/robot",
        {},
    ),
    ("delete", "/projects/{domain}/{project}/service-accounts/{name}"): (
        MANAGE,
        "/projects/default/lab/service-accounts/robot",
        None,
    ),
    ("get", "/notification-addresses"): (OPERATE, "/notification-addresses", None),
    ("get", "/notification-addresses/{name}"): (OPERATE, "/notification-addresses/ops", None),
    ("put", "/notification-addresses/{name}"): (
        OPERATE,
        "/notification-addresses/ops",
        {"url": "json://example.org"},
    ),
    ("delete", "/notification-addresses/{name}"): (OPERATE, "/notification-addresses/ops", None),
    ("post", "/notification-addresses/{name}/test"): (
        OPERATE,
        "/notification-addresses/ops/test",
        {},
    ),
    ("get", "/notification-addresses/{name}/messages"): (
        OPERATE,
        "/notification-addresses/ops/messages",
        None,
    ),
    ("get", "/notification-rules"): (OPERATE, "/notification-rules", None),
    ("get", "/notification-rules/{name}"): (OPERATE, "/notification-rules/night", None),
    ("put", "/notification-rules/{name}"): (
        OPERATE,
        "/notification-rules/night",
        {"address": "ops", "about": "alerts"},
    ),
    ("delete", "/notification-rules/{name}"): (OPERATE, "/notification-rules/night", None),
    ("get", "/quotas"): (ANY, "/quotas", None),
    ("get", "/quotas/{kind}/{name}"): (READ, "/quotas/project/default/lab", None),
    ("delete", "/quotas/{kind}/{name}"): (OPERATE, "/quotas/project/default/lab", None),
    ("put", "/quotas/{kind}/{name}"): (OPERATE, "/quotas/project/default/lab", {}),
    ("get", "/schedules"): (READ, f"/schedules?{LAB}", None),
    ("get", "/schedules/{name}"): (READ, f"/schedules/nightly?{LAB}", None),
    ("put", "/schedules/{name}"): (CHANGE, f"/schedules/nightly?{LAB}", SCHEDULE),
    ("delete", "/schedules/{name}"): (CHANGE, f"/schedules/nightly?{LAB}", None),
    ("get", "/schedules/{name}/firings"): (READ, f"/schedules/nightly/firings?{LAB}", None),
    ("post", "/schedules/{name}/pause"): (CHANGE, f"/schedules/nightly/pause?{LAB}", {}),
    ("post", "/schedules/{name}/resume"): (CHANGE, f"/schedules/nightly/resume?{LAB}", {}),
    ("post", "/schedules/{name}/run"): (CHANGE, f"/schedules/nightly/run?{LAB}", {}),
    ("get", "/secrets"): (USE, f"/secrets?{LAB}", None),
    ("get", "/secrets/{name}"): (USE, f"/secrets/token?{LAB}", None),
    ("put", "/secrets/{name}"): (MANAGE, f"/secrets/token?{LAB}", {"value": "x"}),
    ("delete", "/secrets/{name}"): (MANAGE, f"/secrets/token?{LAB}", None),
    ("get", "/store/artifacts/{uid}/{name}"): (LINKED, "/store/artifacts/{uid}/model", None),
    ("get", "/store/inputs/{digest}"): (LINKED, "/store/inputs/" + "a" * 64, None),
    ("get", "/store/outputs/{group_id}/{name}"): (LINKED, "/store/outputs/{group}/x", None),
    ("get", "/store/results/{group_id}"): (LINKED, "/store/results/{group}", None),
    ("get", "/tasks"): (ANY, "/tasks", None),
    ("post", "/tasks"): (SUBMIT, "/tasks", ONE_OFF),
    ("get", "/tasks/{task}"): (READ, "/tasks/{task}", None),
    ("delete", "/tasks/{task}"): (CHANGE, "/tasks/{task}", None),
    ("get", "/tasks/{task}/artifacts"): (READ, "/tasks/{task}/artifacts", None),
    ("get", "/tasks/{task}/artifacts/{name}"): (READ, "/tasks/{task}/artifacts/model", None),
    ("get", "/tasks/{task}/attempts"): (READ, "/tasks/{task}/attempts", None),
    ("post", "/tasks/{task}/cancel"): (CHANGE, "/tasks/{task}/cancel", {}),
    ("get", "/tasks/{task}/explain"): (READ, "/tasks/{task}/explain", None),
    ("get", "/tasks/{task}/history"): (READ, "/tasks/{task}/history", None),
    ("post", "/tasks/{task}/resolving"): (CHANGE, "/tasks/{task}/resolving", None),
    ("get", "/tokens"): (ANY, "/tokens", None),
    ("post", "/tokens"): (WRITE, "/tokens", {"name": "more"}),
    ("delete", "/tokens/{token_id}"): (
        (ABSENT, DENIED, *(ABSENT,) * 4, OK),
        "/tokens/{token}",
        None,
    ),
    ("get", "/users"): (AUDIT, "/users", None),
    ("get", "/users/{name}"): (AUDIT, "/users/owner", None),
    ("put", "/users/{name}"): (OPERATE, "/users/owner", {"active": True}),
    ("get", "/usage"): (ANY, "/usage", None),
    ("get", "/usage.csv"): (ANY, "/usage.csv", None),
    ("get", "/whoami"): (ANY, "/whoami", None),
}
# The objects of these routes may be files that the attempt does not have: the wall lets through
# what ends in the sentence of the missing file.
MISSING_FILE = "has no artifact"


@dataclass
class Installation:
    """A project `lab` with work of each kind, and a caller for each role."""

    callers: dict[str, Caller]
    ids: dict[str, Any]


@pytest.fixture
def installation(make_cell: Callable[..., Cell]) -> Installation:
    return make_installation(make_cell)


def make_installation(make_cell: Callable[..., Cell]) -> Installation:
    """A project `lab` with a running task, and the callers."""
    lab = Project.objects.create(domain=Domain.objects.get(), name="lab")
    limits = {"viewer": Role.VIEWER, "submitter": Role.SUBMITTER, "owner": Role.SUBMITTER}
    callers = {
        name: make_caller(name, limits.get(name, Role.MANAGER), project="lab")
        for name in ("viewer", "submitter", "owner", "manager")
    }
    callers["outsider"] = make_caller("outsider", Role.MANAGER, project="default")
    callers["operator"] = make_caller("operator", Role.OPERATOR)
    callers["auditor"] = make_auditor()
    owner = callers["owner"]
    job = owner.post("/jobs", {**JOB, "project": "lab", "guid": "g"}).json["id"]
    task = Task.objects.get(job_id=job)
    attempt = place(task, make_cell(), state=TaskState.RUNNING)
    now = clock.now()
    put_address(name="ops", url="json://example.org", now=now)
    put_rule(name="night", wanted=RuleFields("ops", {"about": "alerts"}), now=now)
    put_secret(project_id=lab.pk, name="token", value=b"v", writer=None, now=now)
    Quota.objects.create(project=lab, weight=2)
    put_service_account(project=lab, name="robot", role=Role.SUBMITTER, actor="test", now=now)
    callback = Callback.objects.create(
        job_id=job,
        owner_id=owner.user.pk,
        url="http://a/",
        host="a:80",
        state="waiting",
        due_at=now,
        give_up_at=now,
        created_at=now,
    )
    put_service_account(project=lab, name="robot", role=Role.VIEWER, actor="test", now=now)
    make_entry(lab, owner, job, task.pk, attempt.uid)
    owner.put(f"/schedules/nightly?{LAB}", SCHEDULE)
    operation = owner.post("/bulk", {**BULK, "reason": "x"}).json["id"]
    alert = Alert.objects.create(
        kind="cell_lost", subject="cell-1", text="silent", raised_at=now, last_raised_at=now
    )
    token = ApiToken.objects.get(user=make_caller("other", Role.VIEWER, project="lab").user)
    ids = {
        "job": job,
        "task": task.pk,
        "uid": attempt.uid,
        "group": task.group_id,
        "alert": alert.pk,
        "callback": callback.pk,
        "token": token.pk,
        "operation": operation,
        "exec_session": make_exec_session(attempt).pk,
    }
    return Installation(callers, ids)


def make_exec_session(attempt: Attempt, **fields: Any) -> ExecSession:
    """A session that its submitter requested and no cell has claimed."""
    now = clock.now()
    return ExecSession.objects.create(
        **{
            "uid": uuid4(),
            "attempt": attempt,
            "number": attempt.exec_sessions.count() + 1,
            "command": ["sh"],
            "actor": "owner",
            "token": "test",
            "requested_at": now,
            "client_seen_at": now,
            **fields,
        }
    )


def make_auditor() -> Caller:
    """A member of a group that audits the installation."""
    caller = make_caller("auditor", Role.MANAGER, project="default")
    Membership.objects.filter(user=caller.user).delete()
    group = Group.objects.create(name="auditors")
    group.user_set.add(caller.user)
    Membership.objects.create(group=group, role=AUDITOR, created_at=clock.now())
    Membership.objects.create(
        group=group, role=Role.VIEWER, domain=Domain.objects.get(), created_at=clock.now()
    )
    return caller


def make_entry(
    project: Project, owner: Caller, job: int, task: int, uid: UUID, *, is_shared: bool = False
) -> CacheEntry:
    """A cache entry that a task of the owner populated."""
    scope = f"domain {project.domain_id}" if is_shared else f"project {project.pk}"
    now = clock.now()
    return CacheEntry.objects.create(
        identity=identity_of(scope, "k@1"),
        domain=project.domain,
        project=project,
        owner=owner.user,
        is_shared=is_shared,
        key="k@1",
        job_id=job,
        task_id=task,
        attempt_uid=uid,
        prefix="00/x",
        manifest_sha256="0" * 64,
        created_at=now,
        used_at=now,
    )


@contextmanager
def undone() -> Iterator[None]:
    """Undo what a request changed."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@cache
def described_routes() -> frozenset[tuple[str, str]]:
    """Every method and path of the committed description, without /api/v1."""
    text = (Path(__file__).parents[3] / "docs" / "openapi.yaml").read_text()
    paths = yaml.load(text, Loader=yaml.CSafeLoader)["paths"]
    return frozenset(
        (method, path.removeprefix("/api/v1")) for path, found in paths.items() for method in found
    )


def test_every_route_has_a_row() -> None:
    assert set(ROUTES) == described_routes()


def outcome(answer: Answer) -> str | int:
    """The status of a refusal by role, or OK."""
    assert answer.status < 500, answer.content
    if answer.status == 404 and MISSING_FILE in answer.json["detail"]:
        return OK
    is_wall = answer.status in (401, 403, 404)
    is_unknown_project = answer.status == 422 and "project" in answer.faults
    is_unknown_project = is_unknown_project or "[0].project" in (
        answer.faults if answer.status == 422 else {}
    )
    return answer.status if is_wall or is_unknown_project else OK


def resource_of(path: str) -> str:
    """The first word of a path."""
    return path.split("/")[1].partition(":")[0]


@pytest.mark.parametrize("resource", sorted({resource_of(path) for _, path in ROUTES}))
def test_role_decides_what_a_route_permits(installation: Installation, resource: str) -> None:
    wrong = {}
    for route in sorted(route for route in ROUTES if resource_of(route[1]) == resource):
        expected, path, body = ROUTES[route]
        found = {}
        for name in ROLES:
            with undone():
                caller = installation.callers[name]
                url = path.format(**installation.ids)
                method = route[0].upper()
                if body is None:
                    answer = caller.send(method, url)
                else:
                    answer = caller.put(url, body) if method == "PUT" else caller.post(url, body)
                found[name] = outcome(answer)
        if found != dict(zip(ROLES, expected, strict=True)):
            wrong[" ".join(route)] = found, expected
    assert wrong == {}, "found, expected"


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/{}",
        "/jobs/{}/tasks",
        "/tasks/{}",
        "/tasks/{}/explain",
    ],
)
def test_refusal_does_not_differ_from_that_of_an_object_that_does_not_exist(
    installation: Installation, path: str
) -> None:
    outsider, known = installation.callers["outsider"], installation.ids["job"]
    known = installation.ids["task"] if path.startswith("/tasks") else known
    hidden, missing = outsider.get(path.format(known)), outsider.get(path.format(10**9))
    assert hidden.status == missing.status == 404
    hide = {"request_id": "", "instance": ""}
    as_missing = {**hidden.json, **hide}
    as_missing["detail"] = as_missing["detail"].replace(str(known), str(10**9))
    assert as_missing == {**missing.json, **hide}


def test_lists_of_a_outsider_name_nothing_of_the_project(installation: Installation) -> None:
    outsider, member = installation.callers["outsider"], installation.callers["viewer"]
    for path in ("/jobs", "/tasks", "/jobs?name=sweep", "/tasks?cell=cell-1", "/jobs?pool=default"):
        assert len(member.get(path).json["results"]) == 1, path
        assert outsider.get(path).json["results"] == [], path


def test_a_guid_belongs_to_a_project(installation: Installation) -> None:
    outsider, owner = installation.callers["outsider"], installation.callers["owner"]
    definition = {"image": "busybox", "command": ["true"]}
    wanted = {"guid": "same", "domain": "d", "definition": definition}
    assert owner.post("/tasks", {**wanted, "project": "default/lab"}).status == 201
    assert outsider.get("/tasks/same").status == 404
    assert outsider.post("/tasks", wanted).status == 201
    assert outsider.post("/tasks", wanted).status == 409
    ids = {caller.get("/tasks/same").json["id"] for caller in (owner, outsider)}
    assert len(ids) == 2
    both = installation.callers["operator"].get("/tasks/same")
    assert (both.status, "use its id" in both.json["detail"]) == (409, True)


def test_open_reading_lets_every_user_read_and_no_more(
    installation: Installation, settings: Any
) -> None:
    change_setting(settings, open_reading=True)
    outsider, job = installation.callers["outsider"], installation.ids["job"]
    assert outsider.get(f"/jobs/{job}").status == 200
    assert [item["id"] for item in outsider.get("/jobs").json["results"]] == [job]
    assert outsider.post(f"/jobs/{job}/cancel", {}).status == 403
    assert outsider.get(f"/secrets?{LAB}").status == 403
    assert outsider.post("/jobs", {**JOB, "project": "lab"}).status == 403


def test_shared_cache_entry_does_not_name_its_origin_to_other_projects(
    installation: Installation,
) -> None:
    lab = Project.objects.get(name="lab")
    owner, ids = installation.callers["owner"], installation.ids
    make_entry(lab, owner, ids["job"], ids["task"], uuid4(), is_shared=True)
    query = "/cache/k@1?scope=domain"
    shown = installation.callers["outsider"].get(query).json
    assert shown["project"] is None
    assert shown["origin"] | {"populated_at": None} == dict.fromkeys(
        ("job", "task", "attempt_uid", "submitter", "populated_at")
    )
    known = installation.callers["viewer"].get(f"{query}&project=lab").json
    assert (known["project"], known["origin"]["job"]) == ("lab", ids["job"])


def test_role_ends_with_the_membership(installation: Installation) -> None:
    viewer, job = installation.callers["viewer"], installation.ids["job"]
    assert viewer.get(f"/jobs/{job}").status == 200
    Membership.objects.filter(user=viewer.user).delete()
    assert viewer.get(f"/jobs/{job}").status == 404
    assert viewer.get("/jobs").json["results"] == []
