"""The list of jobs with `search`, which combines with the other filters and obeys the walls."""

import pytest

from controlplane.domain.roles import Role
from controlplane.models import Domain, Project
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.api.test_reading import submit

pytestmark = pytest.mark.django_db


def found(caller: Caller, query: str) -> list[int]:
    answer = caller.get(f"/jobs?{query}")
    assert answer.status == 200, answer.json
    return [job["id"] for job in answer.json["results"]]


def test_jobs_are_searched_by_parts_of_names_guids_and_labels(submitter: Caller) -> None:
    train = submit(submitter, name="train-sweep", guid="run-77", labels={"team": "vision"})
    other = submit(submitter, name="sweep", guid="run-78")
    assert found(submitter, "search=train") == [train]
    assert found(submitter, "search=SWEEP") == [other, train]
    assert found(submitter, "search=run-77") == [train]
    assert found(submitter, "search=team%3Dvis") == [train]
    assert found(submitter, f"search={other}") == [other]
    assert found(submitter, "search=nothing") == []


def test_a_search_combines_with_filters_and_pages(submitter: Caller) -> None:
    jobs = [submit(submitter, name=f"train-{number}") for number in range(3)]
    assert found(submitter, "search=train&name=train-1") == [jobs[1]]
    assert found(submitter, "search=train&state=failed") == []
    first = submitter.get("/jobs?search=train&limit=2").json
    assert [job["id"] for job in first["results"]] == [jobs[2], jobs[1]]
    rest = submitter.get(first["next"]).json
    assert [job["id"] for job in rest["results"]] == [jobs[0]]


def test_jobs_of_other_projects_are_not_found(submitter: Caller) -> None:
    job = submit(submitter, name="train", guid="run-77")
    Project.objects.create(domain=Domain.objects.get(name="default"), name="other")
    member = make_caller("otto", Role.VIEWER, project="other")
    for term in ("train", "rai", "run-77", str(job)):
        assert found(submitter, f"search={term}") == [job]
        assert found(member, f"search={term}") == []
