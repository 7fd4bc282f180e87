"""Requests are limited by their cost, for each token, or for each address without one."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from controlplane.api import charges
from controlplane.clock import now
from controlplane.config.env import ControlPlaneSettings
from controlplane.domain.cells.signed_links import link_key, sign_link
from controlplane.limits.buckets import Buckets, Limit
from controlplane.models import Cell, Job, Task, TaskGroup
from controlplane.queries.attempts.group_specs import load_group_specs
from controlplane.queries.cells.keys import key_of
from tests.integration.api.conftest import Answer, Caller, change_setting, make_caller
from tests.integration.api.links import use_link
from tests.integration.api.test_keys_of_cells import REQUESTS, send
from tests.integration.api.test_reading import place, submit

pytestmark = pytest.mark.django_db

NOOP = {"name": "noop", "image": "busybox", "command": ["true"], "resources": {"cpu": 0.01}}
UID = "00000000-0000-7000-8000-000000000000"


class Clock:
    """The clock of the buckets, which stands still."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Empty buckets, whose clock stands still."""
    found = Clock()
    monkeypatch.setattr(charges, "_buckets", Buckets(now=found))
    return found


@pytest.fixture
def limit(settings: Any, clock: Clock) -> Callable[[int], None]:
    """Sets the burst; a unit a second is refilled."""

    def set_burst(burst: int) -> None:
        change_setting(settings, request_units_per_second=1, request_burst_units=burst)

    return set_burst


def spent(caller: Caller, work: Callable[[], Answer]) -> float:
    """The units that `work` costs."""
    key, limit = f"token {caller.user.api_tokens.get().pk}", charges._limit()
    before, _ = charges._buckets._level(key, limit)
    answer = work()
    assert answer.status < 400, answer.json
    after, _ = charges._buckets._level(key, limit)
    return before - after


def test_a_token_without_units_gets_429_with_the_seconds_to_wait(
    submitter: Caller, limit: Callable[[int], None], clock: Clock
) -> None:
    limit(5)
    assert [submitter.get("/jobs/1").status for _ in range(5)] == [404] * 5
    refused = submitter.get("/jobs/1")
    assert refused.status == 429
    assert refused.headers["Retry-After"] == "1"
    assert refused.faults == {}
    assert refused.json["title"] == "Too Many Requests"
    assert "try again in 1 s" in refused.json["detail"]
    clock.seconds += 1
    assert submitter.get("/jobs/1").status == 404
    assert submitter.get("/jobs/1").status == 429


def test_the_announced_seconds_are_enough_to_pay_a_debt(
    submitter: Caller, limit: Callable[[int], None], clock: Clock
) -> None:
    limit(10)
    assert submitter.post("/jobs", {**NOOP, "replicas": 5_000}).status == 201
    refused = submitter.post("/jobs", NOOP)
    assert refused.status == 429
    assert 40 <= int(refused.headers["Retry-After"]) <= 50
    assert Job.objects.count() == 1
    clock.seconds += int(refused.headers["Retry-After"])
    assert submitter.post("/jobs", NOOP).status == 201


def test_tokens_do_not_share_a_limit(
    submitter: Caller, operator: Caller, limit: Callable[[int], None]
) -> None:
    limit(1)
    assert [submitter.get("/jobs/1").status for _ in range(2)] == [404, 429]
    assert operator.get("/jobs/1").status == 404
    assert Client().get("/api/v1/jobs/1").status_code == 401


def test_a_refused_request_is_charged_too(limit: Callable[[int], None]) -> None:
    reader = make_caller("reader")
    limit(3)
    assert [reader.post("/jobs", NOOP).status for _ in range(4)] == [403, 403, 403, 429]


def test_requests_without_a_valid_token_are_charged_to_their_address(
    submitter: Caller, limit: Callable[[int], None]
) -> None:
    limit(2)
    unknown, none = {"Authorization": "Bearer cr_unknown"}, {}
    near, far = Client(REMOTE_ADDR="10.0.0.1"), Client(REMOTE_ADDR="10.0.0.2")
    found = [near.get("/api/v1/jobs", headers=headers) for headers in (unknown, none, unknown)]
    assert [answer.status_code for answer in found] == [401, 401, 429]
    assert found[-1]["Retry-After"] == "1"
    assert far.get("/api/v1/jobs").status_code == 401
    # A valid token is not limited by what others send from its address.
    assert near.get("/api/v1/jobs/1", headers=submitter.headers).status_code == 404


def test_an_ipv6_caller_has_one_bucket_for_its_network(limit: Callable[[int], None]) -> None:
    limit(2)
    found = [
        Client(REMOTE_ADDR=address).get("/api/v1/jobs").status_code
        for address in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1")
    ]
    assert found == [401, 401, 429, 401]


UNSIGNED = [
    ("POST", f"/attempts/{UID}/briefing"),
    ("POST", f"/attempts/{UID}/gang"),
    ("PUT", f"/attempts/{UID}/logs/stdout?offset=0"),
    ("POST", "/logs:batch"),
    ("POST", f"/attempts/{UID}/artifacts/a?size=1"),
    ("PUT", f"/attempts/{UID}/artifacts/a?offset=0"),
    ("GET", "/store/inputs/0123"),
    ("GET", "/store/inputs/0123?unknown=1"),
    ("GET", "/store/results/1"),
    ("GET", "/store/outputs/1/a"),
    ("GET", f"/store/artifacts/{UID}/a?expires=1&signature=0"),
    ("GET", f"/attempts/{UID}/briefing"),
    ("OPTIONS", f"/attempts/{UID}/briefing"),
]


@pytest.mark.parametrize(("method", "path"), UNSIGNED)
def test_unsigned_requests_at_routes_of_cells_are_charged_to_their_address(
    method: str, path: str, limit: Callable[[int], None]
) -> None:
    limit(2)
    near, far = Client(REMOTE_ADDR="10.0.0.1"), Client(REMOTE_ADDR="10.0.0.2")
    found = [near.generic(method, f"/api/v1{path}") for _ in range(3)]
    assert 429 not in [answer.status_code for answer in found[:2]]
    assert (found[2].status_code, found[2]["Retry-After"]) == (429, "1")
    assert near.get("/api/v1/jobs").status_code == 429
    assert far.generic(method, f"/api/v1{path}").status_code == found[0].status_code


def test_a_long_body_without_a_signature_costs_more(
    limit: Callable[[int], None], settings: Any
) -> None:
    limit(10)
    path, body = f"/api/v1/attempts/{UID}/logs/stdout?offset=0", b"x" * 4_000_000
    found = [Client().put(path, body, "application/octet-stream").status_code for _ in range(2)]
    assert found == [401, 429]


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_signed_requests_of_cells_are_not_limited(
    method: str,
    path: str,
    submitter: Caller,
    make_cell: Callable[..., Cell],
    limit: Callable[[int], None],
) -> None:
    """All cells may have one address, and an attacker may share it; each request has a MAC."""
    submit(submitter)
    attempt, key = place(Task.objects.get(), make_cell()), key_of(Cell.objects.get())
    content = REQUESTS[method, path].encode()
    limit(1)
    assert Client().post(f"/api/v1/attempts/{UID}/briefing").status_code == 401
    assert Client().post(f"/api/v1/attempts/{UID}/briefing").status_code == 429
    for uid in (attempt.uid, UID):
        found = {send(key, method, f"/attempts/{uid}/{path}", content).status for _ in range(3)}
        assert found <= ({200, 404, 409} if uid == attempt.uid else {404})


def test_a_link_of_a_browser_is_charged_to_its_address_once(limit: Callable[[int], None]) -> None:
    path = f"/api/v1/store/artifacts/{UID}/a"
    expires = int(now().timestamp()) + 60
    link = sign_link(link_key(settings.SECRET_KEY), path, expires=expires)
    limit(2)
    assert [Client().get(link).status_code for _ in range(3)] == [404, 404, 429]


def test_a_link_of_a_cell_is_not_limited(
    submitter: Caller, make_cell: Callable[..., Cell], limit: Callable[[int], None]
) -> None:
    cell = make_cell()
    submit(submitter, inputs=[{"path": "/in", "content": "an input"}])
    place(Task.objects.get(), cell)
    (spec,) = load_group_specs([TaskGroup.objects.get().pk]).read.values()
    limit(1)
    assert Client().get("/api/v1/store/inputs/0123").status_code == 403
    assert [use_link(spec.inputs[0].url, cell).status for _ in range(3)] == [200] * 3


def test_a_submission_costs_by_its_jobs_and_tasks(submitter: Caller, clock: Clock) -> None:
    one = spent(submitter, lambda: submitter.post("/jobs", NOOP))
    many = spent(submitter, lambda: submitter.post("/jobs", {**NOOP, "replicas": 1_000}))
    batch = spent(submitter, lambda: submitter.post("/jobs:batch", [NOOP] * 50))
    planned = spent(submitter, lambda: submitter.post("/jobs:dry-run", {**NOOP, "replicas": 1_000}))
    read = spent(submitter, lambda: submitter.get(f"/jobs/{Job.objects.first().pk}"))
    assert read < one < many < batch
    assert planned == pytest.approx(many, abs=0.01)
    assert many - one == pytest.approx(10, rel=0.1)
    assert batch - one == pytest.approx(49, rel=0.1)


def test_a_search_costs_the_time_that_it_takes(
    submitter: Caller, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = iter([100.0, 102.0])
    monkeypatch.setattr(charges, "monotonic", lambda: next(instants))
    assert spent(submitter, lambda: submitter.get("/jobs?limit=1")) < 2
    assert spent(submitter, lambda: submitter.get("/jobs?limit=1&search=a")) > 2_000


@pytest.mark.parametrize("path", ["/usage", "/usage.csv"])
def test_figures_of_usage_cost_the_time_that_they_take(
    submitter: Caller, clock: Clock, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Rows are few although many totals are added up."""
    instants = iter([100.0, 102.0])
    monkeypatch.setattr(charges, "monotonic", lambda: next(instants))
    assert spent(submitter, lambda: submitter.get(path)) > 2_000


def test_the_start_of_a_bulk_operation_costs_the_most_that_its_count_reads(
    submitter: Caller, clock: Clock
) -> None:
    submitter.post("/jobs", NOOP)
    body = {"action": "cancel", "filter": {"name": "noop"}, "reason": "test"}
    assert spent(submitter, lambda: submitter.post("/bulk", body)) > 200


def test_a_one_off_task_costs_as_much_as_a_job(submitter: Caller, clock: Clock) -> None:
    one = spent(submitter, lambda: submitter.post("/jobs", NOOP))
    definition = {key: value for key, value in NOOP.items() if key != "name"}
    body = {"guid": "one-1", "domain": "d", "definition": definition}
    desired = spent(submitter, lambda: submitter.post("/tasks", body))
    assert desired == pytest.approx(one, rel=0.1)


def test_a_retry_costs_by_its_tasks(submitter: Caller, clock: Clock) -> None:
    job = submit(submitter, replicas=500)
    submitter.post(f"/jobs/{job}/cancel", {})
    one = spent(submitter, lambda: submitter.get(f"/jobs/{job}"))
    retried = spent(submitter, lambda: submitter.post(f"/jobs/{job}/retry"))
    assert retried - one == pytest.approx(6, rel=0.1)


def test_a_document_costs_by_its_bytes_and_its_language(submitter: Caller, clock: Clock) -> None:
    """A YAML document of 2 MB takes 1.5 s to parse; JSON is ten times as fast."""
    padded = {**NOOP, "annotation": "x" * 14_000}
    small = spent(submitter, lambda: submitter.post("/jobs", NOOP))
    as_json = spent(submitter, lambda: submitter.post("/jobs", padded))
    text = json.dumps(padded).encode()
    as_yaml = spent(
        submitter,
        lambda: submitter.send("POST", "/jobs", text, content_type="application/yaml"),
    )
    assert small < as_json
    assert as_yaml - small > 10 * (as_json - small)
    assert as_yaml == pytest.approx(2 + 10, rel=0.1)


def test_a_page_costs_by_its_limit(submitter: Caller, clock: Clock) -> None:
    short = spent(submitter, lambda: submitter.get("/jobs?limit=1"))
    long = spent(submitter, lambda: submitter.get("/jobs?limit=1000"))
    assert long - short == pytest.approx(20, rel=0.1)


def test_a_count_of_a_bulk_operation_costs_by_the_jobs_that_it_reads(
    submitter: Caller, clock: Clock
) -> None:
    """Also if its filter selects none of them."""
    submitter.post("/jobs:batch", [NOOP] * 100)
    nothing = {"action": "cancel", "filter": {"labels": {"team": "none"}}}
    units = spent(submitter, lambda: submitter.post("/bulk:preview", nothing))
    assert units == pytest.approx(charges.REQUEST_UNITS + 2, rel=0.1)


def test_the_defaults_do_not_limit_the_submissions_of_the_benchmarks() -> None:
    """50,000 jobs of one token in batches of 1,000, in 43 s on the reference machine.

    Also on a machine that is three times as fast.
    """
    fields = ControlPlaneSettings.model_fields
    limit = Limit(fields["request_units_per_second"].default, fields["request_burst_units"].default)
    clock = Clock()
    buckets = Buckets(now=clock)
    body_bytes = len(json.dumps([NOOP] * 1_000))
    for _ in range(50):
        assert buckets.take("a", charges.REQUEST_UNITS, limit) == 0
        units = 1_000 * charges.JOB_UNITS + 1_000 / charges.TASKS_PER_UNIT
        buckets.charge("a", units + body_bytes / charges.JSON_BYTES_PER_UNIT, limit)
        clock.seconds += 43 / 50 / 3
