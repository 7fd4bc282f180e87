"""One command upgrades an installation of an earlier release: tokens with scopes, or with roles.

The values that the earlier release derived from its secret key are fixed here, as that release
computed them.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import keys
from controlplane.models import Cell
from controlplane.queries.cells.keys import key_of
from controlplane.queries.tenancy.secrets import open_secrets
from tests.integration.api.conftest import Caller, change_setting

RELEASES = "0001_initial", "0006_pool_job_limits"
# The scopes of the first release that have become a role.
SCOPES = {"operator": ["submit", "operate"], "submitter": ["submit"], "viewer": list[str]()}
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)

SECRET_KEY = "the key of an installation before the upgrade"
KEY_OF_CELL = "Gog3GZaBy61FRG0h1xWrHKkXE8J9qbjsM9SCmwk2Atc="
MAC_OF_CELL = "d1340461f1854837c60454f423f9e6bee0138297d28fb27b85a7a4d420f425b8"
# The secret `token` of the project 7001.
PROJECT = 7001
SEALED = bytes.fromhex(
    "eed68f5bbab3c0a4447828c26644f8a6b32b98809a6fb9e227031bb6d9782e5d07599b8dd933619a141b5b80fe59f3"
    "57682ea2f48023c710"
)
TOKENS = {
    # A token, its SHA-256, and its role.
    "user-1": (
        "cr_token_of_user_1_before_the_upgrade",
        "6c4b8b4be1f5effaaa20356b0e8c54fa8fcd6554e7766ff38d471d1841d94045",
        "submitter",
    ),
    "user-2": (
        "cr_token_of_user_2_before_the_upgrade",
        "f14f8d516e548bc0053635ae44a3d216d024f7617150aa7840d136d18bbdb050",
        "viewer",
    ),
    "operator-1": (
        "cr_token_of_operator_1_before_the_upgrade",
        "f5f9f65429d4cd6f97651a207288800865c63f075ea559eb488a0cdd6f0d1963",
        "operator",
    ),
}
SPEC = {"name": "job", "image": "busybox", "command": ["true"]}


@pytest.fixture(params=RELEASES)
def ids(
    request: pytest.FixtureRequest, transactional_db: None, settings: Any, tmp_path: Path
) -> Iterator[dict[str, int]]:
    """The ids of the jobs of an installation that was upgraded with `manage.py migrate`."""
    settings.SECRET_KEY = SECRET_KEY
    change_setting(settings, artifact_root=tmp_path)
    executor, release = MigrationExecutor(connection), [("controlplane", request.param)]
    try:
        executor.migrate(release)
        found = Installation(executor.loader.project_state(release).apps).fill()
        call_command("migrate", verbosity=0, interactive=False)
        yield found
    finally:
        call_command("migrate", verbosity=0, interactive=False)


class Installation:
    """Rows of the earlier release, written with its models."""

    def __init__(self, apps: Any) -> None:
        self._apps = apps

    def fill(self) -> dict[str, int]:
        """Create an installation that was in use; return the ids of its jobs."""
        home = self._get("Domain", name="default")
        lab = self._create("Domain", name="lab")
        default = self._create("Project", pk=PROJECT, domain=home, name="default")
        genes = self._create("Project", domain=lab, name="genes")
        self._pool = self._get("Pool", name="default")
        users = self._apps.get_model("auth", "User").objects
        names = {
            name: users.create(username=name, is_superuser=role == "operator")
            for name, (_, _, role) in TOKENS.items()
        }
        has_scopes = hasattr(self._apps.get_model("controlplane", "ApiToken"), "scopes")
        for name, (clear, digest, role) in TOKENS.items():
            rights = {"scopes": SCOPES[role]} if has_scopes else {"role": role}
            self._create(
                "ApiToken",
                user=names[name],
                name="laptop",
                prefix=clear[:10],
                digest=digest,
                created_at=NOW,
                **rights,
            )
        self._create("Quota", user=names["user-1"], running_tasks=7)
        made = {"created_at": NOW, "updated_at": NOW, "size": 5}
        self._create("Secret", project=default, name="token", sealed=SEALED, **made)
        cell = {"name": "cell-1", "pool": self._pool, "key_salt": "5a17", "tags": ["quiet"]}
        if hasattr(self._apps.get_model("controlplane", "Cell"), "claims"):
            cell["claims"] = {"pool": "default", "labels": {}, "capacity": {}}
        self._create("Cell", **cell, enrolled_at=NOW)
        self._create("AuditLine", at=NOW, actor="operator-1", action="deleted", subject="job 3 x")
        return {
            "waiting": self._job(default, names["user-1"], "waiting", S.PENDING),
            "ended": self._job(default, names["user-1"], "ended", S.SUCCEEDED),
            "one-off": self._job(default, names["user-1"], "one-off", S.PENDING, guid="guid-1"),
            "foreign": self._job(genes, names["user-2"], "foreign", S.PENDING),
        }

    def _job(self, project: Any, owner: Any, name: str, state: S, guid: str = "") -> int:
        """Create a job with one task in a state, and return its id."""
        ended = NOW if state is S.SUCCEEDED else None
        job = self._create(
            "Job",
            project=project,
            owner=owner,
            pool=self._pool,
            name=name,
            state=state,
            min_available=1,
            spec=SPEC | {"name": name},
            spec_digest="0" * 64,
            created_at=NOW,
            finished_at=ended,
            is_one_off=bool(guid),
        )
        scope = {"project": project, "owner": owner, "pool": self._pool}
        work = {"resources": {"cpu_millis": 100, "memory_mib": 32}, "task_type": "container"}
        shape = self._create("Shape", pk=job.pk, band=2, **scope, **work)
        group = self._create(
            "TaskGroup",
            job=job,
            name="main",
            position=0,
            replicas=1,
            task_count=1,
            min_available=1,
            shape_id=shape.pk,
            launch={},
            startable_at=NOW,
            counts=[int(number == state) for number in range(max(S) + 1)],
            **work,
        )
        task = self._create(
            "Task",
            job=job,
            group=group,
            shape_id=shape.pk,
            index=0,
            state=state,
            updated_at=NOW,
            finished_at=ended,
        )
        if guid:
            self._create("OneOff", task=task, job=job, guid=guid, domain="d")
        return int(job.pk)

    def _create(self, model: str, **fields: Any) -> Any:
        return self._apps.get_model("controlplane", model).objects.create(**fields)

    def _get(self, model: str, **fields: Any) -> Any:
        return self._apps.get_model("controlplane", model).objects.get_or_create(**fields)[0]


def caller(name: str) -> Caller:
    """A caller with the token that the user had before."""
    return Caller(TOKENS[name][0])


def names_of(found: Caller) -> set[str]:
    """The names of the jobs that a caller lists."""
    return {job["name"] for job in found.get("/jobs").json["results"]}


def test_submitter_works_in_default_and_sees_nothing_else(ids: dict[str, int]) -> None:
    user = caller("user-1")
    assert names_of(user) == {"waiting", "ended", "one-off"}
    created = user.post("/jobs", SPEC | {"band": "production"})
    assert created.status == 201, created.content
    assert user.get("/tasks/guid-1").status == 200
    assert user.post(f"/jobs/{ids['waiting']}/cancel", {}).status == 202
    assert user.post(f"/jobs/{ids['foreign']}/cancel", {}).status == 404
    assert user.get(f"/jobs/{ids['foreign']}").status == 404
    assert user.get("/quotas/user/user-1").json["running_tasks"] == 7
    assert [item["name"] for item in user.get("/secrets").json["results"]] == ["token"]
    assert user.put("/secrets/token", {"value": "other"}).status == 403


def test_viewer_reads_where_the_user_worked_and_changes_nothing(ids: dict[str, int]) -> None:
    user = caller("user-2")
    assert names_of(user) == {"waiting", "ended", "one-off", "foreign"}
    assert user.post("/jobs", SPEC).status == 403
    assert user.post(f"/jobs/{ids['foreign']}/cancel", {}).status == 403
    assert user.put("/cells/cell-1", {}).status == 403


def test_operator_does_everything(ids: dict[str, int]) -> None:
    operator = caller("operator-1")
    assert names_of(operator) == {"waiting", "ended", "one-off", "foreign"}
    assert operator.post(f"/jobs/{ids['foreign']}/cancel", {}).status == 202
    assert operator.put("/secrets/token", {"value": "other"}).status == 200
    assert operator.post("/cells/cell-1/cordon").status < 300
    cell = operator.put("/cells/cell-1", {"node_labels": {"node/zone": "a"}}).json
    assert (cell["tags"], cell["labels"]) == (["quiet"], {"node/zone": "a"})
    assert operator.put("/pools/default", {"strict_fifo": True}).status == 200
    manager = {"role": "manager"}
    assert operator.put("/domains/default/members/users/user-1", manager).status < 300
    assert caller("user-1").put("/secrets/token", {"value": "third"}).status == 403  # its token
    lines = operator.get("/audit").json["results"]
    assert ("delete.job", "job 3 x") in {(line["action"], line["subject"]) for line in lines}


def test_secrets_open_and_keys_of_cells_verify(ids: dict[str, int]) -> None:
    opened = open_secrets(PROJECT, ["token"])
    assert opened.values == {"token": b"value of the earlier release"}
    key = key_of(Cell.objects.get(name="cell-1"))
    assert keys.encode_key(key) == KEY_OF_CELL
    assert keys.is_signed(keys.mac_key(key, keys.TO_CONTROL), "a message", MAC_OF_CELL)
