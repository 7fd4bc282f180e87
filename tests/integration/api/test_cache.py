"""Entries of the result cache: listed by project, shown with outputs, evicted by their owners."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client

from controlplane import clock
from controlplane.commands.cache.operate import evict_entry
from controlplane.domain.cache.keys import identity_of
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Role
from controlplane.models import AuditLine, CacheEntry, Domain, Project
from tests.harness.members import admit
from tests.integration.api.conftest import Caller, check_described, make_caller
from tests.integration.api.test_metrics import figures

OUTPUT = {"name": "model", "size": 7, "sha256": "ab" * 32}

MakeEntry = Callable[..., CacheEntry]


@pytest.fixture
def make_entry(submitter: Caller) -> MakeEntry:
    """Creates an entry as a task of the submitter stores it."""

    def make(key: str = "k@1", *, scope: str = "project", **changes: Any) -> CacheEntry:
        project = changes.pop("project", None) or Project.objects.get(
            name="default", domain__name="default"
        )
        number = project.pk if scope == "project" else project.domain_id
        now, uid = clock.now(), uuid4()
        fields: dict[str, Any] = {
            "identity": identity_of(f"{scope} {number}", key),
            "domain": project.domain,
            "project": project,
            "owner": submitter.user,
            "is_shared": scope == "domain",
            "key": key,
            "job_id": 12,
            "task_id": 40,
            "attempt_uid": uid,
            "prefix": "00/default/default/12/40/x",
            "manifest_sha256": "0" * 64,
            "result": "42",
            "outputs": [OUTPUT | {"uri": f"/api/v1/attempts/{uid}/artifacts/model"}],
            "size_bytes": 9,
            "hits": 3,
            "created_at": now,
            "used_at": now,
        }
        return CacheEntry.objects.create(**fields | changes)

    return make


def keys(caller: Caller, query: str = "") -> list[str]:
    answer = caller.get(f"/cache?{query}")
    assert answer.status == 200, answer.content
    return [entry["key"] for entry in answer.json["results"]]


def test_entry_is_listed_with_its_origin_and_use(submitter: Caller, make_entry: MakeEntry) -> None:
    entry = make_entry()
    [listed] = submitter.get("/cache").json["results"]
    check_described("CacheEntry", listed)
    assert (listed["key"], listed["scope"], listed["hits"]) == ("k@1", "project", 3)
    assert (listed["domain"], listed["project"]) == ("default", "default")
    assert (listed["size_bytes"], listed["outputs_count"]) == (9, 1)
    assert (listed["result"], listed["outputs"]) == (None, None)
    origin = listed["origin"]
    assert (origin["job"], origin["task"], origin["submitter"]) == (12, 40, "ann")
    assert origin["attempt_uid"] == str(entry.attempt_uid)
    assert origin["populated_at"].startswith(entry.created_at.isoformat()[:19])


def test_entry_is_shown_with_result_and_outputs(submitter: Caller, make_entry: MakeEntry) -> None:
    make_entry("model:2031@1")
    shown = submitter.get("/cache/model:2031@1").json
    check_described("CacheEntry", shown)
    assert shown["result"] == "42"
    assert [item["name"] for item in shown["outputs"]] == ["model"]


def test_pages_are_newest_first_and_complete(submitter: Caller, make_entry: MakeEntry) -> None:
    for number in range(5):
        make_entry(f"k{number}@1", scope="domain" if number % 2 else "project")
    seen, path = [], "/cache?limit=2"
    while path:
        page = submitter.get(path).json
        seen += [entry["key"] for entry in page["results"]]
        path = page["next"]
    assert seen == ["k4@1", "k3@1", "k2@1", "k1@1", "k0@1"]
    assert keys(submitter, "scope=domain") == ["k3@1", "k1@1"]
    assert keys(submitter, "key=k2@1") == ["k2@1"]
    assert keys(submitter, "key=k2@1&scope=domain") == []


def test_project_sees_its_entries_and_those_its_domain_shares(
    submitter: Caller, make_entry: MakeEntry
) -> None:
    home = Domain.objects.get()
    other = Project.objects.create(domain=home, name="other")
    abroad = Project.objects.create(domain=Domain.objects.create(name="lab"), name="default")
    make_entry("own@1")
    make_entry("others@1", project=other)
    make_entry("shared@1", project=other, scope="domain")
    make_entry("abroad@1", project=abroad)
    make_entry("abroad-shared@1", project=abroad, scope="domain")
    admit(submitter.user, Role.VIEWER, domain="lab")
    assert keys(submitter) == ["shared@1", "own@1"]
    assert keys(submitter, "project=other") == ["shared@1", "others@1"]
    assert keys(submitter, "domain=lab") == ["abroad-shared@1", "abroad@1"]
    assert submitter.get("/cache/abroad@1").status == 404
    assert submitter.get("/cache/others@1").status == 404
    assert submitter.get("/cache/shared@1").status == 404
    assert submitter.get("/cache/shared@1?scope=domain").json["project"] == "other"
    unknown = submitter.get("/cache?project=none")
    assert (unknown.status, unknown.json["detail"]) == (404, "there is no project default/none")


def test_evicted_entry_is_neither_listed_nor_shown(
    submitter: Caller, make_entry: MakeEntry
) -> None:
    make_entry("old@1", evicted_at=clock.now())
    assert keys(submitter) == []
    assert submitter.get("/cache/old@1").status == 404


@pytest.mark.parametrize(
    ("query", "field"), [("scope=world", "scope"), ("limit=0", "limit"), ("colour=red", "colour")]
)
def test_bad_query_names_the_parameter(submitter: Caller, query: str, field: str) -> None:
    answer = submitter.get(f"/cache?{query}")
    assert (answer.status, list(answer.faults)) == (400, [field])


def test_unknown_and_malformed_keys_are_not_found(submitter: Caller, operator: Caller) -> None:
    for caller in (submitter, operator):
        for method in ("GET", "DELETE"):
            answer = caller.send(method, "/cache/none@1")
            assert answer.status == 404
            assert answer.json["detail"] == "project default/default has no cache entry none@1"
            assert caller.send(method, "/cache/a%20b").status == 404


def test_submitter_of_the_origin_and_operators_evict(
    submitter: Caller, operator: Caller, make_entry: MakeEntry
) -> None:
    other, reader = make_caller("bob", Role.SUBMITTER), make_caller("otto")
    for caller in (submitter, operator):
        entry = make_entry()
        for refused in (other, reader):
            assert refused.send("DELETE", "/cache/k@1").status == 403
        assert caller.send("DELETE", "/cache/k@1").status == 204
        entry.refresh_from_db()
        assert entry.evicted_at is not None
        assert entry.evicted_for == f"evicted by {caller.user.username}"
        assert caller.send("DELETE", "/cache/k@1").status == 404
    lines = AuditLine.objects.filter(action="evict.cache_entry").order_by("id")
    assert [(line.actor, line.subject) for line in lines] == [
        ("ann", "cache entry k@1"),
        ("olga", "cache entry k@1"),
    ]
    text = AuditLine.objects.latest("id").text
    assert text == "of project default/default, populated by job 12, task 40, hits: 3"


def test_entry_of_a_deleted_user_is_evicted_by_operators_only(
    submitter: Caller, operator: Caller, make_entry: MakeEntry
) -> None:
    make_entry(owner=None)
    assert submitter.get("/cache/k@1").json["origin"]["submitter"] is None
    assert submitter.send("DELETE", "/cache/k@1").status == 403
    assert operator.send("DELETE", "/cache/k@1").status == 204


def test_eviction_of_one_scope_leaves_the_other(operator: Caller, make_entry: MakeEntry) -> None:
    make_entry(scope="domain")
    make_entry()
    assert operator.send("DELETE", "/cache/k@1?scope=domain").status == 204
    [left] = operator.get("/cache").json["results"]
    assert left["scope"] == "project"


def test_repeated_eviction_writes_one_audit_line(db: None, make_entry: MakeEntry) -> None:
    entry, now = make_entry(), clock.now()
    evict_entry(entry_id=entry.pk, actor="olga", reason=" wrong model ", now=now)
    evict_entry(entry_id=entry.pk, actor="ann", now=now + timedelta(seconds=1))
    entry.refresh_from_db()
    assert (entry.evicted_at, entry.evicted_for) == (now, "evicted by olga; wrong model")
    assert AuditLine.objects.get(action="evict.cache_entry").text.startswith(
        "wrong model; of project default/default"
    )
    with pytest.raises(NotFound):
        evict_entry(entry_id=entry.pk + 1, actor="olga", now=now)


def test_outputs_of_an_entry_can_be_listed_when_its_job_is_gone(
    submitter: Caller, make_entry: MakeEntry
) -> None:
    uid = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
    uri = f"/api/v1/attempts/{uid}/artifacts/model"
    make_entry(attempt_uid=uid, outputs=[OUTPUT | {"uri": uri}])
    [item] = submitter.get(f"/attempts/{uid}/artifacts").json["results"]
    assert item["name"] == "model"


def test_entries_need_a_token(anonymous: Caller) -> None:
    assert anonymous.get("/cache").status == 401
    assert Client().delete("/api/v1/cache/k@1").status_code == 401


def test_metrics_count_present_entries(make_entry: MakeEntry) -> None:
    assert figures()["cellrun_cache_entries",] == 0
    make_entry("a@1")
    make_entry("b@1", size_bytes=100, hits=4)
    make_entry("c@1", evicted_at=clock.now())
    found = figures()
    assert found["cellrun_cache_entries",] == 2
    assert found["cellrun_cache_bytes",] == 109
    assert found["cellrun_cache_hits",] == 7
