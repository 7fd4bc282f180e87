"""Addresses: their parts, and what a wrong one answers."""

import pytest

from cellrun.addresses import Address, find_job, find_job_id, find_subject, read_address
from cellrun.api.session import Session
from cellrun.errors import BadInput
from tests.unit.client.documents import a_job, a_page, a_task
from tests.unit.client.stub_server import Api


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", Address("7")),
        ("train-sweep", Address("train-sweep")),
        ("7/lr.3", Address("7", "lr", 3)),
        ("7/lr.3#2", Address("7", "lr", 3, 2)),
        ("7/3", Address("7", None, 3)),
        ("7/lr", Address("7", "lr")),
        ("7/a.b.3", Address("7", "a.b", 3)),
        ("7#2", Address("7", attempt=2)),
        ("team/nightly/main.0", Address("team/nightly", "main", 0)),
    ],
)
def test_address_is_read(text: str, expected: Address) -> None:
    assert read_address(text) == expected


@pytest.mark.parametrize("text", ["", "/main.0", "7/", "7#", "7#0", "7#x", "7/main.0#-1", "#1"])
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_address(text)


def test_id_of_a_job_needs_no_request(api: Api, session: Session) -> None:
    assert find_job_id(session, "7") == 7
    assert api.requests == []


def test_name_is_searched_before_a_guid(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs", a_page())
    api.answer("GET /api/v1/jobs", a_page(a_job(guid="run/77")))
    assert find_job(session, "sweep")["guid"] == "run/77"
    assert [query for _, query, *_ in api.requests] == ["name=sweep&limit=1", "guid=sweep&limit=1"]
    assert find_job(session, "run/77")["id"] == 7
    assert api.requests[-1][1] == "guid=run%2F77&limit=1"


def test_unknown_job_task_and_attempt_are_named(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs", a_page())
    api.answer("GET /api/v1/jobs/7", a_job())
    api.answer("GET /api/v1/jobs/7/tasks", a_page())
    api.answer("GET /api/v1/jobs/7/tasks", a_page(a_task(), a_task(id=71, index=1)))
    for text, expected in (
        ("swep", "there is no job with the name or guid 'swep'"),
        ("7/other", "job 7 has no group 'other'; it has main"),
        ("7/main.9", "job 7 has no task main.9"),
        ("7#1", "job 7 has several such tasks: name one of 7/main.0, 7/main.1, …"),
    ):
        with pytest.raises(BadInput, match=expected):
            find_subject(session, text)


def test_job_is_expected_where_a_task_is_named(api: Api, session: Session) -> None:
    api.answer("GET /api/v1/jobs", a_page())
    with pytest.raises(BadInput, match="takes the whole job, 7"):
        find_job(session, "7/main.0")
