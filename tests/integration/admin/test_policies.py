"""Operators edit pools and quotas in the admin, and see there how these stand."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import plugins
from controlplane.domain.placement.reasons.explain import QUEUE_POSITION
from controlplane.models import (
    Attempt,
    Domain,
    Pool,
    Project,
    Quota,
    Shape,
    StoredTotal,
    Task,
    TaskGroup,
)
from tests.integration.admin.rows import WHY_PENDING
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db

POLICY = {
    "sequencer": "drf",
    "starvation_seconds": "",
    "preemption": "",
    "mass_loss": "proceed",
    "strict_fifo": "on",
    "selector": "concentrated",
    "max_building_per_cell": "3",
    "tokens": "licence: 4\nseat: 0",
    "validators": ["dependencies", "user_quota"],
    "pending_timeout_seconds": "600",
    "pull_timeout_seconds": "60",
    "create_timeout_seconds": "30",
    "allowed_mounts": "/srv/models\n/srv/scratch: writable\n",
    "cells_may_join": "on",
    "privileged_allowed": "on",
    "allowed_capabilities": "NET_RAW, SYS_PTRACE",
    "input_networks": "10.1.0.0/16, fd00::/8",
    "job_limits": "max_pids: 4096\nmin_check_interval_seconds: 2.5",
}
NO_LIMITS = {
    "resources": "",
    "running_tasks": "",
    "running_jobs": "",
    "pending_tasks": "",
    "stored_bytes": "",
    "weight": "1.0",
}


def policy_of(pool: Pool) -> dict[str, Any]:
    pool.refresh_from_db()
    return {field.name: getattr(pool, field.name) for field in pool._meta.concrete_fields}


def test_pool_form_edits_every_field_but_the_name(operator: Client) -> None:
    pool = Pool.objects.get(name="gpu")
    Pool.objects.update(cursor="cell-7")
    answer = operator.post(address_of(Pool, pool), {"name": "other", **POLICY})
    assert answer.status_code == 302
    assert policy_of(pool) == {
        "id": pool.pk,
        "name": "gpu",
        "sequencer": "drf",
        "starvation_seconds": None,
        "preemption": False,
        "mass_loss": "proceed",
        "loss_held_at": None,
        "loss_confirmed_at": None,
        "strict_fifo": True,
        "selector": "concentrated",
        "max_building_per_cell": 3,
        "tokens": {"licence": 4, "seat": 0},
        "validators": ["dependencies", "user_quota"],
        "pending_timeout_seconds": 600,
        "pull_timeout_seconds": 60,
        "create_timeout_seconds": 30,
        "allowed_mounts": [
            {"path": "/srv/models", "read_only": True},
            {"path": "/srv/scratch", "read_only": False},
        ],
        "cells_may_join": True,
        "privileged_allowed": True,
        "exec_allowed": False,
        "allowed_capabilities": ["NET_RAW", "SYS_PTRACE"],
        "input_networks": ["10.1.0.0/16", "fd00::/8"],
        "job_limits": {"max_pids": 4096, "min_check_interval_seconds": 2.5},
        "uncovered_since": None,
        "cursor": "cell-7",
    }
    delete = address_of(Pool, pool).replace("/change/", "/delete/")
    assert operator.post(delete, {"post": "yes"}).status_code == 403
    operator.post(f"{address_of(Pool)}add/", {"name": "new", **POLICY})
    assert Pool.objects.get(name="new").tokens == {"licence": 4, "seat": 0}


def test_pool_form_resubmitted_unchanged_changes_nothing(operator: Client) -> None:
    pool = Pool.objects.get(name="default")
    pool.tokens = {"licence": 4}
    pool.allowed_mounts = [{"path": "/srv", "read_only": False}]
    pool.save()
    before = policy_of(pool)
    form = operator.get(address_of(Pool, pool)).context["adminform"].form
    sent = {name: form[name].value() for name in form.fields}
    sent = {name: "" if value in (None, False) else value for name, value in sent.items()}
    assert sent["tokens"] == "licence: 4"
    assert operator.post(address_of(Pool, pool), sent).status_code == 302
    assert policy_of(pool) == before


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("sequencer", "none", "none is not one of the available choices"),
        ("selector", "", "This field is required"),
        ("validators", ["user_quota", "x"], "x is not one of the available choices"),
        ("allowed_mounts", "srv", "is not an absolute path"),
        ("allowed_mounts", "/srv/../etc", "is not an absolute path"),
        ("allowed_mounts", "/srv: rw", "expected PATH or PATH: writable"),
        ("job_limits", "max_pids: 0", "must be at least 1"),
        ("job_limits", "pids: 5", "unknown field"),
        ("input_networks", "10.1.0.0/16,local", "local is not a network"),
        ("allowed_capabilities", "NET_RAW,all", "all is not the name of a capability"),
        ("tokens", "licence: -1", "licence: must be at least 0"),
        ("tokens", "cpu: 1", "cpu is a reserved name"),
        ("tokens", "licence", "must be a mapping"),
        ("tokens", "a: [", "not YAML"),
        ("max_building_per_cell", "0", "greater than or equal to 1"),
        ("pull_timeout_seconds", "-5", "greater than or equal to 0"),
    ],
)
def test_invalid_pool_policy_is_refused(
    operator: Client, field: str, value: Any, text: str
) -> None:
    pool = Pool.objects.get(name="gpu")
    before = policy_of(pool)
    answer = operator.post(address_of(Pool, pool), {**POLICY, field: value})
    assert answer.status_code == 200
    assert list(answer.context["errors"].data) == [
        [*answer.context["adminform"].form.errors[field]]
    ]
    assert text in " ".join(answer.context["adminform"].form.errors[field])
    assert policy_of(pool) == before


def test_plugin_choices_are_the_installed_plugins(operator: Client) -> None:
    form = operator.get(f"{address_of(Pool)}add/").context["adminform"].form
    for field in ("sequencer", "selector", "validators"):
        offered = [name for name, _ in form.fields[field].choices]
        assert offered == plugins.names_of(plugins.Kind.of_field(field))
    assert form["sequencer"].value() == "fifo"
    assert form["validators"].value() == list(Pool().validators)


def test_pool_page_shows_usage_and_waiting_tasks(operator: Client) -> None:
    pool = Pool.objects.get(name="default")
    pool.tokens = {"licence": 8}
    pool.save()
    held = Attempt.objects.filter(released_at=None).count()
    TaskGroup.objects.update(resources={"cpu_millis": 100, "memory_mib": 32, "licence": 2})
    seen = words(page(operator, address_of(Pool, pool)))
    assert "1 ready" in seen
    assert f"cpu {held / 10:g} of 2 memory {32 * held} MiB of 2 GiB" in seen
    assert f"licence {2 * held} of 8" in seen
    waiting = Task.objects.filter(state=1).count()
    assert f"{waiting} insufficient_resources {WHY_PENDING}" in seen
    Task.objects.filter(state=1).update(not_before="2100-01-01T00:00Z")
    assert f"{waiting} backing_off" in words(page(operator, address_of(Pool, pool)))
    Shape.objects.all().delete()
    Task.objects.filter(state=1).update(not_before=None)
    assert f"{waiting} {QUEUE_POSITION}" in words(page(operator, address_of(Pool, pool)))
    empty = words(page(operator, address_of(Pool, Pool.objects.get(name="gpu"))))
    assert "Cells none Mass loss none In use – Tokens in use – Waiting tasks none" in empty


def test_quota_page_shows_its_usage(operator: Client) -> None:
    held = Attempt.objects.filter(released_at=None).count()
    quota = Quota.objects.get()
    for seen in (
        words(page(operator, address_of(Quota))),
        words(page(operator, address_of(Quota, quota))),
    ):
        assert "user ann" in seen
        assert f"{held} of 40" in seen
        assert f"{held / 10:g} of 4" in seen
        assert f"{32 * held} MiB" in seen


def test_stored_bytes_are_limited_and_shown_with_the_usage(operator: Client) -> None:
    project = Project.objects.get()
    StoredTotal.objects.create(project=project, total_bytes=3 * 2**19)
    made = {**NO_LIMITS, "project": project.pk, "stored_bytes": "2Gi"}
    assert operator.post(f"{address_of(Quota)}add/", made).status_code == 302
    quota = Quota.objects.get(project=project)
    assert quota.stored_bytes == 2**31
    for address in (
        address_of(Quota),
        address_of(Quota, quota),
        address_of(Project, project),
    ):
        assert "1.5 MiB of 2.0 GiB" in words(page(operator, address)), address
    changed = {**made, "stored_bytes": ""}
    assert operator.post(address_of(Quota, quota), changed).status_code == 302
    quota.refresh_from_db()
    assert quota.stored_bytes is None
    assert "1.5 MiB" in words(page(operator, address_of(Project, project)))


def test_default_quota_is_created_shown_and_unique(operator: Client) -> None:
    made = {**NO_LIMITS, "default_for": "project", "running_tasks": "7", "highest_band": "batch"}
    assert operator.post(f"{address_of(Quota)}add/", made).status_code == 302
    quota = Quota.objects.get(default_for="project")
    assert (quota.running_tasks, quota.highest_band) == (7, "batch")
    assert "each project without a quota" in words(page(operator, address_of(Quota)))
    assert "each project without a quota" in words(page(operator, address_of(Quota, quota)))
    for again in (made, {**made, "domain": Domain.objects.get().pk, "default_for": "user"}):
        assert operator.post(f"{address_of(Quota)}add/", again).status_code == 200
    assert Quota.objects.exclude(default_for="").count() == 1


def test_quotas_are_created_changed_and_deleted(operator: Client) -> None:
    home = Domain.objects.get()
    made = {**NO_LIMITS, "domain": home.pk, "resources": "cpu: 4\nmemory: 64Gi\nlicence: 2"}
    assert operator.post(f"{address_of(Quota)}add/", made).status_code == 302
    quota = Quota.objects.get(domain=home)
    assert quota.resources == {"cpu_millis": 4000, "memory_mib": 65536, "licence": 2}
    form = operator.get(address_of(Quota, quota)).context["adminform"].form
    assert form["resources"].value() == made["resources"]
    changed = {**NO_LIMITS, "user": User.objects.get(username="ann").pk, "running_tasks": "0"}
    assert operator.post(address_of(Quota, quota), changed).status_code == 302
    quota.refresh_from_db()
    assert (quota.domain, quota.user, quota.running_tasks, quota.resources) == (home, None, 0, {})
    delete = address_of(Quota, quota).replace("/change/", "/delete/")
    assert operator.post(delete, {"post": "yes"}).status_code == 302
    assert not Quota.objects.filter(domain=home).exists()
    every = {"action": "delete_selected", "_selected_action": Quota.objects.get().pk, "post": "yes"}
    assert operator.post(address_of(Quota), every).status_code == 302
    assert not Quota.objects.exists()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "a quota belongs to one user, one project or one domain"),
        ({"domain": "d", "project": "p"}, "a quota belongs to one user, one project or one domain"),
        ({"user": "u"}, "Quota with this User already exists"),
        ({"domain": "d", "resources": "cpu: -1"}, "resources.cpu: must not be negative"),
        ({"domain": "d", "weight": "0"}, "greater than or equal to 0.001"),
        ({"domain": "d", "stored_bytes": "5Gi"}, "limits projects only"),
        ({"project": "p", "stored_bytes": "much"}, "must be a quantity"),
    ],
)
def test_invalid_quota_is_refused(operator: Client, fields: dict[str, str], text: str) -> None:
    keys = {
        "d": Domain.objects.get().pk,
        "p": Project.objects.get().pk,
        "u": User.objects.get(username="ann").pk,
    }
    sent = {name: keys.get(value, value) for name, value in fields.items()}
    answer = operator.post(f"{address_of(Quota)}add/", {**NO_LIMITS, **sent})
    assert answer.status_code == 200
    assert text.removeprefix("resources.") in str(answer.context["errors"])
    assert Quota.objects.count() == 1


def test_onlooker_can_view_but_not_change_pools_and_quotas(onlooker: Client) -> None:
    for row in (Pool.objects.get(name="default"), Quota.objects.get()):
        assert page(onlooker, address_of(type(row), row))
        assert onlooker.post(address_of(type(row), row), {}).status_code == 403


@pytest.mark.parametrize("model", [Pool, Quota], ids=lambda model: model.__name__)
def test_list_statement_count_does_not_grow_with_rows(
    operator: Client, model: type[Pool] | type[Quota]
) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            page(operator, address_of(model))
        return len(captured)

    before = statements()
    for number in range(5):
        Pool.objects.create(name=f"pool-{number}")
        Quota.objects.create(user=User.objects.create_user(f"user-{number}"), running_jobs=1)
    assert statements() == before
