"""A client that sends back the ETag of a document gets it only if it has changed."""

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from controlplane.api.conditional import compare_etags
from controlplane.domain.roles import Role
from tests.integration.api.conftest import make_caller

pytestmark = pytest.mark.django_db

JOB = {"name": "sweep", "image": "busybox", "command": ["true"]}


def test_a_document_is_sent_again_only_after_a_change() -> None:
    caller = make_caller("ann", Role.SUBMITTER, project="default")
    path = f"/jobs/{caller.post('/jobs', JOB).json['id']}"
    first = caller.get(path)
    same = caller.send("GET", path, If_None_Match=first.headers["ETag"])
    assert (same.status, same.content) == (304, b"")
    caller.post(f"{path}/cancel", {})
    changed = caller.send("GET", path, If_None_Match=first.headers["ETag"])
    assert (changed.status, changed.json["state"]) == (200, "KILLED")
    assert changed.headers["ETag"] != first.headers["ETag"]


def test_other_conditions_do_not_count() -> None:
    caller = make_caller("ann", Role.SUBMITTER, project="default")
    etag = caller.get("/jobs").headers["ETag"]
    for headers in (
        {"If_Match": '"another"'},
        {"If_None_Match": '"another", W/"a'},
        {"If_None_Match": "*"},
        {"If_Unmodified_Since": "Fri, 27 Nov 2020 12:00:00 GMT"},
    ):
        answer = caller.send("GET", "/jobs", **headers)
        assert (answer.status, answer.headers["ETag"]) == (200, etag), headers


def test_a_list_has_an_etag_and_a_write_has_none() -> None:
    caller = make_caller("ann", Role.SUBMITTER, project="default")
    assert "ETag" in caller.get("/jobs").headers
    assert "ETag" not in caller.post("/jobs", JOB).headers


def test_an_empty_response_has_no_etag() -> None:
    respond = compare_etags(lambda request: HttpResponse(b""))
    request = RequestFactory().get("/api/v1/attempts/x/logs", headers={"If-None-Match": '"a"'})
    answer = respond(request)
    assert (answer.status_code, answer.has_header("ETag")) == (200, False)


def test_an_etag_does_not_replace_the_token() -> None:
    caller = make_caller("ann", Role.SUBMITTER, project="default")
    path = f"/jobs/{caller.post('/jobs', JOB).json['id']}"
    etag = caller.get(path).headers["ETag"]
    make_caller("olga", Role.OPERATOR).put("/projects/default/other", {})
    other = make_caller("eve", Role.MANAGER, project="other")
    assert other.send("GET", path, If_None_Match=etag).status == 404
