"""A dry run predicts the result of a submission by placement's rules, and changes nothing."""

import json
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.api.work import forecast_schemas
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.dry_run import DryRun, dry_run
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Job, Pool, Quota
from controlplane.queries.sql import rows
from controlplane.queries.views.tasks import list_tasks
from controlplane.spec import parse_job
from tests.integration.loop.conftest import Loop

SMALL = {"cpu": 1, "memory": "64Mi"}


def a_job(**more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"name": "asked", **more}
    if "groups" not in body:
        body = {"image": "x", "resources": SMALL, **body}
    return body


def a_group(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", "resources": SMALL, **more}


def dry_run_of(loop: Loop, **more: Any) -> DryRun:
    body = a_job(**more)
    return dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())


def everything() -> dict[str, list[tuple[Any, ...]]]:
    """Each row of each table, with the transaction that wrote it, and every sequence."""
    tables = rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    found = {table: rows(f'SELECT xmin::text, * FROM "{table}" ORDER BY 2') for (table,) in tables}
    found["sequences"] = rows("SELECT sequencename, last_value FROM pg_sequences ORDER BY 1")
    return found


class JobsApi:
    """The API, with a token of the loop's owner."""

    def __init__(self, loop: Loop) -> None:
        self.token = create_api_token(
            user=loop.owner, name="test", role=Role.SUBMITTER, now=clock.now()
        )

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        made = Client().post(
            f"/api/v1{path}",
            json.dumps(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        return made.status_code, json.loads(made.content)


# ------------------------------------------------------------------------- nothing is changed


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (200, {"replicas": 3}),
        (200, {"replicas": 9}),
        (200, {"band": "production", "replicas": 4}),
        (200, {"guid": "first"}),
        (200, {"existing_job_policy": "replace", "name": "job"}),
        (200, {"inputs": [{"content": "text", "path": "/in/text"}]}),
        (409, {"guid": "first", "replicas": 2}),
        (422, {"replicas": 0}),
        (422, {"resources": {"cpu": 1000}}),
        (422, {"depends_on": [{"job": "nobody"}]}),
        (422, {"parent": 999_999}),
    ],
)
def test_dry_run_changes_nothing_and_is_refused_like_a_submission(
    loop: Loop, status: int, more: dict[str, Any]
) -> None:
    loop.cell("cell-1", 4000)
    first = a_job(guid="first")
    api = JobsApi(loop)
    assert api.post("/jobs", first)[0] == 201
    loop.submit(replicas=2, band="batch")
    loop.place()
    before, sent = everything(), len(loop.wire.sent)
    answered, document = api.post("/jobs:dry-run", a_job(**more))
    assert answered == status, document
    assert everything() == before
    assert len(loop.wire.sent) == sent
    if status == 200:
        forecast_schemas.DryRun.model_validate(document)
    else:
        assert api.post("/jobs", a_job(**more)) == (status, document)


# -------------------------------------------------------------------------- where it would go


@pytest.mark.parametrize("selector", ["dispersed", "concentrated"])
def test_dry_run_predicts_the_placement_of_a_submission(loop: Loop, selector: str) -> None:
    Pool.objects.update(selector=selector)
    for number in range(3):
        loop.cell(f"cell-{number}", 4000)
    loop.submit(replicas=2)
    loop.place()
    groups = [a_group("a", replicas=4), a_group("b", replicas=9)]
    a, b = dry_run_of(loop, groups=groups).groups
    job = loop.submit(groups=groups)
    loop.place()
    for group, forecast in zip(job.groups.order_by("position"), (a, b), strict=True):
        placed = Attempt.objects.filter(task__group=group).select_related("cell")
        names = [attempt.cell.name for attempt in placed]
        assert forecast.cells == {name: names.count(name) for name in sorted(set(names))}
        reason = next(
            (
                t["pending_reason"]
                for t in tasks_of(loop, job)
                if t["group"] == group.name and t["state"] == "PENDING"
            ),
            None,
        )
        assert (forecast.reason or {}).get("code") == (reason or {}).get("code")
    assert (sum(a.cells.values()), sum(b.cells.values()), b.waiting) == (4, 6, 3)


def tasks_of(loop: Loop, job: Job) -> list[dict[str, Any]]:
    return list_tasks(job.pk, states=[], after=None, limit=1000, now=clock.now())


def test_dry_run_places_waiting_tasks_first(loop: Loop) -> None:
    loop.cell("cell-1", 4000)
    loop.submit(replicas=3)
    found = dry_run_of(loop, replicas=2)
    (group,) = found.groups
    assert (group.cells, group.waiting) == ({"cell-1": 1}, 1)
    assert group.reason is not None
    assert (
        group.reason["text"]
        == "no cell has enough free capacity: cell-1 comes closest and lacks 1 core"
    )
    assert found.is_complete


def test_dry_run_in_a_lifo_pool_places_the_new_job_first(loop: Loop) -> None:
    Pool.objects.update(sequencer="lifo")
    loop.cell("cell-1", 4000)
    loop.submit(replicas=4)
    (group,) = dry_run_of(loop, replicas=3).groups
    assert (group.cells, group.waiting) == ({"cell-1": 3}, 0)


def test_dry_run_in_a_strict_pool_names_the_blocking_job(loop: Loop) -> None:
    Pool.objects.update(strict_fifo=True, preemption=False)
    loop.cell("cell-1", 4000)
    large = loop.submit(resources={"cpu": 3, "memory": "64Mi"}, replicas=2)
    (group,) = dry_run_of(loop).groups
    assert group.reason is not None
    assert (group.reason["code"], group.reason["behind"]) == ("queue_position", large.pk)
    other = a_group("b", resources={"cpu": 0.5, "memory": "64Mi"})
    a, b = dry_run_of(loop, band="production", groups=[a_group("a", replicas=5), other]).groups
    assert (a.cells, a.waiting, b.waiting) == ({"cell-1": 4}, 1, 1)
    assert b.reason is not None
    assert "behind another group of its job" in b.reason["text"]


# ---------------------------------------------------------------------------- why it would wait


def test_dry_run_places_no_part_of_a_gang_that_does_not_fit(loop: Loop) -> None:
    loop.cell("cell-1", 4000)
    loop.submit(replicas=2)
    loop.place()
    (group,) = dry_run_of(loop, coscheduled=True, replicas=3).groups
    assert (group.cells, group.waiting) == ({}, 3)
    assert group.reason is not None
    assert (group.reason["code"], group.reason["need"], group.reason["have"]) == (
        "waiting_for_gang",
        3,
        2,
    )
    (group,) = dry_run_of(loop, coscheduled=True, replicas=3, min_available=2).groups
    assert (group.cells, group.waiting) == ({"cell-1": 2}, 1)


def test_dry_run_lists_every_reason_to_wait(
    loop: Loop,
) -> None:
    loop.cell("cell-1", 4000)
    Quota.objects.create(user=loop.owner, running_tasks=1)
    first = loop.submit(guid="first")
    loop.place()
    groups = [a_group("a"), a_group("b", depends_on=[{"group": "a"}])]
    found = dry_run_of(
        loop, groups=groups, depends_on=[{"job": "first"}], start_after="2099-01-01T00:00:00Z"
    )
    for group, codes in zip(
        found.groups,
        (
            ["waiting_for_job", "waiting_for_start_time", "quota_exceeded"],
            [
                "waiting_for_job",
                "waiting_for_dependency",
                "waiting_for_start_time",
                "quota_exceeded",
            ],
        ),
        strict=True,
    ):
        assert group.reason is not None
        assert [item["code"] for item in (group.reason, *group.also)] == codes
        assert group.reason["text"] == "waits until job first has succeeded"
        assert group.reason["jobs"] == [{"job": first.pk, "until": "succeeded"}]


def test_dry_run_reports_met_and_impossible_dependencies(loop: Loop) -> None:
    loop.cell("cell-1", 4000)
    job = loop.submit(guid="first")
    cancel_job(job_id=job.pk, reason="", force=False, actor="x", now=clock.now())
    loop.converge()
    (group,) = dry_run_of(loop, depends_on=[{"job": "first", "until": "finished"}]).groups
    assert group.cells == {"cell-1": 1}
    (group,) = dry_run_of(loop, depends_on=[{"job": "first", "until": "succeeded"}]).groups
    assert group.reason is not None
    assert group.reason["text"] == (
        "would end at once: its dependency on job first (succeeded) cannot be met"
    )


def test_dry_run_reports_a_quota_that_can_never_be_met(loop: Loop) -> None:
    loop.cell("cell-1", 4000)
    Quota.objects.create(user=loop.owner, resources={"cpu_millis": 500})
    (group,) = dry_run_of(loop, allow_unsatisfiable=True).groups
    assert group.reason is not None
    assert (group.reason["code"], group.is_refused) == ("quota_exceeded", False)


def test_dry_run_names_an_existing_job(loop: Loop) -> None:
    api, body = JobsApi(loop), a_job(guid="mine")
    _, document = api.post("/jobs", body)
    _, answer = api.post("/jobs:dry-run", body)
    assert (answer["existing_job"], answer["groups"]) == (document["id"], [])
    _, answer = api.post("/jobs:dry-run", a_job(existing_job_policy="keep"))
    assert answer["existing_job"] == document["id"]


# ------------------------------------------------------------------------------------ evictions


def test_dry_run_lists_evictions_without_evicting(loop: Loop) -> None:
    loop.cell("cell-1", 4000)
    less = loop.submit(band="batch", replicas=4)
    loop.place()
    found = dry_run_of(loop, band="production", replicas=2)
    (group,) = found.groups
    assert (group.cells, group.waiting, group.kept) == ({}, 2, {"cell-1": 2})
    assert group.reason is not None
    assert group.reason["code"] == "insufficient_resources"
    assert [(item["job"], item["cell"]) for item in found.evicts] == [(less.pk, "cell-1")] * 2
    assert {item["name"] for item in found.evicts} <= {f"main.{n}" for n in range(4)}
    assert loop.states(less) == ["ASSIGNED"] * 4
    Pool.objects.update(preemption=False)
    assert list(dry_run_of(loop, band="production").evicts) == []
