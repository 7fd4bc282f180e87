"""`cellrun pools` and `quota`: what is shown, and what `--set` sends."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import a_page, a_pool, a_quota
from tests.unit.client.stub_server import Api

POOL = "/api/v1/pools/default"
QUOTA = "/api/v1/quotas/user/ann"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def rows_of(result: Result) -> list[str]:
    """The lines, with one space where there are more."""
    assert (result.exit_code, result.stderr) == (0, "")
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def sent(api: Api, called: str) -> list[Any]:
    return [body for name, _, _, body in api.requests if name == called]


def test_pools_are_listed_with_their_policy(environment: Api) -> None:
    strict = a_pool(name="gpu", strict_fifo=True, preemption=False, tokens={"licence": 4, "s": 1})
    environment.answer("GET /api/v1/pools", a_page(a_pool(), strict))
    assert rows_of(call("pools"))[1:] == [
        "default fifo dispersed best effort on",
        "gpu fifo dispersed strict fifo off licence 4, s 1",
    ]
    assert json.loads(call("pools", "-o", "json").stdout) == [a_pool(), strict]


def test_a_pool_is_shown_with_every_field(environment: Api) -> None:
    environment.answer(f"GET {POOL}", a_pool(tokens={"licence": 4}, starvation_seconds=None))
    shown = rows_of(call("pools", "default"))
    assert shown[0] == "pool default"
    assert {"strict_fifo no", "starvation_seconds none", "tokens licence 4"} < set(shown)
    assert "validators dependencies, user_quota" in shown
    assert json.loads(call("pools", "default", "-o", "json").stdout)["tokens"] == {"licence": 4}


def test_pool_update_sends_only_changed_fields(environment: Api) -> None:
    environment.answer(f"GET {POOL}", a_pool(tokens={"licence": 4}))
    environment.answer(f"PUT {POOL}", a_pool(strict_fifo=True))
    done = call(
        *("pools", "default", "--set", "strict_fifo=true", "--set", "preemption=true"),
        *("--set", "tokens.seat=2", "--set", "validators=[user_quota]"),
    )
    assert "strict_fifo yes" in rows_of(done)
    assert sent(environment, f"PUT {POOL}") == [
        {"strict_fifo": True, "tokens": {"licence": 4, "seat": 2}, "validators": ["user_quota"]}
    ]


def test_update_of_an_unknown_pool_creates_it(environment: Api) -> None:
    environment.answer("PUT /api/v1/pools/new", a_pool(name="new"), 201)
    assert call("pools", "new", "--set", "sequencer=drf").exit_code == 0
    assert sent(environment, "PUT /api/v1/pools/new") == [{"sequencer": "drf"}]
    assert call("pools", "none").exit_code == 2


def test_quotas_are_listed_with_their_usage(environment: Api) -> None:
    lab = a_quota(
        kind="project",
        name="lab/genes",
        resources={},
        running_tasks=None,
        stored_bytes=5 * 2**30,
        weight=2.0,
        usage={**a_quota()["usage"], "stored_bytes": 3 * 2**19},  # type: ignore[dict-item]
    )
    environment.answer("GET /api/v1/quotas", a_page(a_quota(), lab))
    listed = rows_of(call("quota"))
    assert listed[1:] == [
        "user ann 1.5 of 4 96 of 65536 MiB 3 of 7 1 5 1 interactive",
        "project lab/genes 1.5 96 MiB 3 1 5 1.5 MiB of 5.0 GiB 2 interactive",
    ]
    assert rows_of(call("quota", "user")) == listed
    assert "kind=user" in environment.requests[-1][1]


def test_quota_shows_every_limited_or_used_resource(environment: Api) -> None:
    used = {"cpu": 1.5, "memory_mib": 96, "licence": 1}
    usage = {
        "resources": used,
        "running_tasks": 3,
        "running_jobs": 0,
        "pending_tasks": 0,
        "stored_bytes": 7,
    }
    environment.answer(f"GET {QUOTA}", a_quota(running_jobs=0, usage=usage))
    assert rows_of(call("quota", "user", "ann")) == [
        "user ann weight 1 highest band interactive",
        "",
        "LIMIT IN USE",
        "running tasks 3 of 7",
        "running jobs 0 of 0",
        "pending tasks 0",
        "stored 7 B",
        "cpu 1.5 of 4",
        "memory 96 of 65536 MiB",
        "licence 1",
    ]


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        (["cpu=8"], {"resources": {"cpu": 8, "memory_mib": 65536}}),
        (["memory=1Gi"], {"resources": {"cpu": 4.0, "memory": "1Gi"}}),
        (["resources.licence=2"], {"resources": {"cpu": 4.0, "memory_mib": 65536, "licence": 2}}),
        (["resources={}", "weight=2"], {"resources": {}, "weight": 2}),
        (["running_tasks=null", "cpu=4"], {"running_tasks": None}),
        (["stored_bytes=5Gi"], {"stored_bytes": "5Gi"}),
    ],
)
def test_quota_update_sends_only_changed_fields(
    environment: Api, changes: list[str], body: dict[str, Any]
) -> None:
    environment.answer(f"GET {QUOTA}", a_quota())
    environment.answer(f"PUT {QUOTA}", a_quota())
    assert call("quota", "user", "ann", *(f"--set={change}" for change in changes)).exit_code == 0
    assert sent(environment, f"PUT {QUOTA}") == [body]


def test_quota_is_deleted_and_the_default_quota_is_shown(environment: Api) -> None:
    environment.answer(f"DELETE {QUOTA}", None, 204)
    environment.answer(f"GET {QUOTA}", a_quota(is_default=True))
    shown = rows_of(call("quota", "user", "ann", "--delete", "--yes"))
    assert shown[0].endswith("(default quota)")
    assert [name.partition(" ")[0] for name, *_ in environment.requests] == ["DELETE", "GET"]
    for words in (["--delete"], ["user", "ann", "--delete", "--set", "cpu=1"]):
        assert call("quota", *words).exit_code != 0
    assert len(environment.requests) == 2


@pytest.mark.parametrize(("answer", "deletions"), [("", 0), ("n\n", 0), ("y\n", 1)])
def test_quota_is_deleted_after_a_confirmation(
    environment: Api, answer: str, deletions: int
) -> None:
    environment.answer(f"DELETE {QUOTA}", None, 204)
    environment.answer(f"GET {QUOTA}", a_quota(is_default=True))
    done = CliRunner().invoke(app, ["quota", "user", "ann", "--delete"], input=answer)
    assert "Delete the quota of user ann?" in done.stderr
    assert len(sent(environment, f"DELETE {QUOTA}")) == deletions
    assert (done.exit_code == 0) == bool(deletions)


def test_update_without_changes_sends_nothing(environment: Api) -> None:
    environment.answer(f"GET {QUOTA}", a_quota())
    environment.answer(f"GET {POOL}", a_pool())
    assert call("quota", "user", "ann", "--set", "running_tasks=7").exit_code == 0
    assert call("pools", "default", "--set", "strict_fifo=false").exit_code == 0
    assert {name.partition(" ")[0] for name, *_ in environment.requests} == {"GET"}


def test_set_without_a_target_is_refused_without_a_request(environment: Api) -> None:
    for words in (["pools"], ["quota"], ["quota", "user"]):
        done = call(*words, "--set", "weight=2")
        assert done.exit_code == 2
        assert done.stderr.startswith("cellrun: --set: ")
    assert environment.requests == []


def test_slash_in_a_project_name_is_quoted(environment: Api) -> None:
    environment.answer("GET /api/v1/quotas/project/lab%2Fgenes", a_quota(kind="project"))
    assert call("quota", "project", "lab/genes").exit_code == 0


def test_default_quota_is_shown_without_usage_and_named(environment: Api) -> None:
    default = a_quota(kind="default", name="user", is_default=True, usage=None, resources={})
    environment.answer("GET /api/v1/quotas/default/user", default)
    environment.answer("PUT /api/v1/quotas/default/user", default)
    shown = rows_of(call("quota", "default", "user", "--set", "highest_band=production"))
    assert shown[0] == "default user weight 1 highest band interactive"
    assert "running tasks 0 of 7" in shown
    assert sent(environment, "PUT /api/v1/quotas/default/user") == [{"highest_band": "production"}]
    environment.answer(f"GET {QUOTA}", a_quota(is_default=True))
    assert rows_of(call("quota", "user", "ann"))[0].endswith("(default quota)")


def a_usage_row(**changes: Any) -> dict[str, Any]:
    """Ten core hours and 20 GiB hours, of which one and five were used."""
    return {
        "month": None,
        "project": "default/lab",
        "user": None,
        "job": None,
        "attempts": 12,
        "unmeasured_attempts": 0,
        "requested_cpu_seconds": 36_000.0,
        "used_cpu_seconds": 3600.0,
        "wasted_cpu_seconds": 32_400.0,
        "requested_memory_mib_seconds": 20.0 * 1024 * 3600,
        "used_memory_mib_seconds": 5.0 * 1024 * 3600,
        "wasted_memory_mib_seconds": 15.0 * 1024 * 3600,
        "memory_peak_mib": 300.0,
        "requested_gpu_seconds": 1800.0,
        **changes,
    }


def test_usage_is_shown_in_core_hours_and_gib_hours(environment: Api) -> None:
    environment.answer("GET /api/v1/usage", a_page(a_usage_row()))
    head, row = rows_of(call("usage", "--month", "2031-05"))
    assert head == "PROJECT ATTEMPTS CORE H USED WASTED GIB H USED WASTED PEAK GPU H"
    assert row == "default/lab 12 10 1 9 20 5 15 300 MiB 0.5"
    assert json.loads(call("usage", "-o", "json").stdout) == [a_usage_row()]


def test_usage_by_several_keys_has_a_column_for_each(environment: Api) -> None:
    environment.answer("GET /api/v1/usage", a_page(a_usage_row(user="ann", job="train")))
    head, row = rows_of(call("usage", "--by", "project,user,job"))
    assert head.startswith("PROJECT USER JOB ATTEMPTS")
    assert row.startswith("default/lab ann train 12")


def test_month_without_usage_has_a_text_instead_of_a_table(environment: Api) -> None:
    environment.answer("GET /api/v1/usage", a_page())
    assert rows_of(call("usage")) == ["no usage in this month"]


def test_usage_as_csv_and_as_json_at_once_is_refused(environment: Api) -> None:
    assert "--csv: not together with --output" in call("usage", "--csv", "-o", "json").stderr
