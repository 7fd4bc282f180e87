"""The audit log: append-only, in the transaction of the change, readable, without secrets."""

import json
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.db import DatabaseError, connection, connections, transaction

from controlplane import clock
from controlplane.commands.audit import Action, AuditEntry, bind_origin, record
from controlplane.commands.audit import Origin as AuditOrigin
from controlplane.commands.tenancy.pools import put_pool
from controlplane.config.asgi import application
from controlplane.management.actor import AuditedCommand
from controlplane.models import Attempt, AuditLine, Cell, Job, Project
from controlplane.queries.tenancy.audit import AuditFilter, follow_audit_lines
from controlplane.spec import InvalidSpec
from tests.integration.api.asgi import call
from tests.integration.api.conftest import Caller
from tests.integration.api.conftest import make_cell as make_cell
from tests.integration.api.conftest import manager as manager
from tests.integration.api.conftest import operator as operator
from tests.integration.api.conftest import submitter as submitter
from tests.integration.api.conftest import tenancy as tenancy
from tests.integration.api.test_secrets import briefed
from tests.integration.api.test_secrets import run as run

pytestmark = pytest.mark.django_db(transaction=True)

JOB = {"name": "one", "image": "busybox", "command": ["true"], "allow_unsatisfiable": True}


def entry(subject: str = "pool p") -> AuditEntry:
    return AuditEntry(Action.CHANGE_POOL, subject)


def write(*subjects: str) -> list[int]:
    with transaction.atomic():
        record(*map(entry, subjects), actor="olga", now=clock.now())
    found = AuditLine.objects.filter(subject__in=subjects).order_by("pk")
    return [line.pk for line in found]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE controlplane_auditline SET actor = 'nemo' WHERE id = %s",
        "DELETE FROM controlplane_auditline WHERE id = %s",
    ],
)
def test_lines_are_neither_changed_nor_deleted(statement: str) -> None:
    [line] = write("pool p")
    with pytest.raises(DatabaseError, match="append-only"), connection.cursor() as cursor:
        cursor.execute(statement, [line])
    assert AuditLine.objects.get(pk=line).actor == "olga"


def test_a_change_that_is_rolled_back_leaves_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(InvalidSpec):
        put_pool(name="p", changes={"max_building_per_cell": -1})
    assert not AuditLine.objects.filter(subject="pool p").exists()
    with transaction.atomic():
        put_pool(name="p", changes={})
        transaction.set_rollback(True)
    assert not AuditLine.objects.filter(subject="pool p").exists()
    assert "pool p" not in caplog.text


def test_a_line_is_logged_after_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cellrun.audit"), transaction.atomic():
        put_pool(name="p", changes={"strict_fifo": True})
        assert "pool p" not in caplog.text
    [event] = [item.msg for item in caplog.records if item.name == "cellrun.audit"]
    assert (event["action"], event["subject"]) == ("create.pool", "pool p")
    line = AuditLine.objects.get(subject="pool p")
    assert (event["id"], event["after"]) == (line.pk, line.after)
    json.dumps(event)


def test_a_change_has_the_changed_fields_only(operator: Caller) -> None:
    put_pool(name="p", changes={})
    operator.put("/pools/p", {"strict_fifo": True})
    line = AuditLine.objects.get(action="change.pool")
    assert (line.before, line.after) == ({"strict_fifo": False}, {"strict_fifo": True})
    operator.put("/pools/p", {"strict_fifo": True})
    assert AuditLine.objects.filter(action="change.pool").count() == 1


def test_a_batch_has_a_line_for_each_job_from_one_statement(submitter: Caller) -> None:
    statements: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        answer = submitter.post("/jobs:batch", [{**JOB, "name": f"n{it}"} for it in range(20)])
    assert answer.status == 201
    assert len([sql for sql in statements if "INTO controlplane_auditline" in sql]) == 1
    lines = AuditLine.objects.filter(action="submit.job", project=Project.objects.get())
    jobs = {f"job {pk}" for pk in Job.objects.values_list("pk", flat=True)}
    assert {line.subject for line in lines} == jobs
    assert len(jobs) == 20


def test_the_use_of_a_secret_names_its_attempt(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    manager.put("/secrets/token", {"value": "hunter2"})
    manager.put("/secrets/other", {"value": "hunter3"})
    cell, attempt = run(secrets=[{"name": "token", "env": "TOKEN"}])
    briefed(cell, attempt.uid)
    line = AuditLine.objects.get(action="use.secret")
    assert (line.actor, line.via, line.subject) == (cell.name, "cell", "secret token")
    assert f"attempt {attempt.uid} of job {attempt.task.job_id}" in line.text
    assert line.project == Project.objects.get()


def test_repeated_use_of_a_secret_by_an_attempt_is_one_line(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    """A cell with a stolen key can fetch the launch context without end."""
    for name in ("token", "later"):
        manager.put(f"/secrets/{name}", {"value": "hunter2"})
    cell, attempt = run(secrets=[{"name": "token", "env": "TOKEN"}])
    for _ in range(5):
        briefed(cell, attempt.uid)
    uses = AuditLine.objects.filter(action="use.secret").order_by("id")
    assert [line.subject for line in uses] == ["secret token"]
    _, second = run(secrets=[{"name": name, "env": name} for name in ("token", "later")])
    briefed(cell, second.uid)
    assert [line.subject for line in uses.all()][1:] == ["secret later", "secret token"]
    assert str(second.uid) in uses.all()[1].text


def test_use_of_a_secret_is_recorded_once_among_many_uses(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    """A cell with a stolen key can fetch the contexts of many attempts in turn."""
    manager.put("/secrets/token", {"value": "hunter2"})
    cell, attempt = run(secrets=[{"name": "token", "env": "TOKEN"}])
    briefed(cell, attempt.uid)
    line = AuditLine.objects.get(action="use.secret")
    others = [
        AuditLine(
            at=line.at, actor=line.actor, action=line.action, subject=line.subject, text=str(number)
        )
        for number in range(1_100)
    ]
    AuditLine.objects.bulk_create(others)
    briefed(cell, attempt.uid)
    assert AuditLine.objects.filter(action="use.secret", text=line.text).count() == 1


def test_no_line_has_the_value_of_a_secret_or_a_token(
    operator: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        operator.put("/secrets/token", {"value": "hunter2"})
        operator.put("/secrets/token", {"value": "hunter3"})
        operator.put("/secrets/login", {"registry": {"username": "u", "password": "hunter4"}})
        made = operator.post("/tokens", {"name": "ci", "role": "viewer"}).json
        operator.send("DELETE", f"/tokens/{made['id']}")
        operator.post("/jobs", {**JOB, "env": {"PASSWORD": "hunter5"}})
        operator.send("DELETE", "/secrets/token")
    everything = json.dumps(list(AuditLine.objects.values()), default=str) + caplog.text
    assert AuditLine.objects.filter(via="token").count() == 7
    assert "hunter" not in everything
    assert made["token"] not in everything


def test_an_operator_lists_lines_newest_first_with_filters(
    operator: Caller, submitter: Caller
) -> None:
    job = submitter.post("/jobs", JOB).json["id"]
    submitter.post(f"/jobs/{job}/cancel", {"reason": "wrong"})
    operator.put("/pools/p", {"strict_fifo": True})

    def actions(query: str) -> list[str]:
        answer = operator.get(f"/audit?{query}")
        assert answer.status == 200, answer.content
        return [line["action"] for line in answer.json["results"]]

    assert actions("limit=3") == ["create.pool", "cancel.job", "submit.job"]
    assert actions("actor=ann") == ["cancel.job", "submit.job"]
    assert actions("action=cancel.job") == ["cancel.job"]
    assert actions(f"subject=job%20{job}&token=test") == ["cancel.job", "submit.job"]
    assert actions("project=default/default&actor=ann") == ["cancel.job", "submit.job"]
    Project.objects.create(domain=Project.objects.get().domain, name="other")
    assert actions("project=other") == []
    later = (clock.now() + timedelta(minutes=1)).isoformat().replace("+", "%2B")
    assert actions(f"since={later}") == []
    assert actions(f"until={later}&limit=1") == ["create.pool"]
    first = operator.get("/audit?limit=1").json
    assert [it["action"] for it in operator.get(first["next"]).json["results"]] == ["cancel.job"]
    line = operator.get("/audit?action=cancel.job").json["results"][0]
    shown = (line["actor"], line["via"], line["token"], line["text"], line["project"])
    assert shown == ("ann", "token", "test", "wrong", "default/default")


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("since=2031-05-04", "since: must be a time with a zone, such as 2031-05-04T12:00:00Z"),
        ("action=cancel.jobs", "action: there is no action cancel.jobs"),
        ("project=default/none", "project: there is no project default/none"),
    ],
)
def test_misspelt_filter_is_refused(operator: Caller, query: str, fault: str) -> None:
    answer = operator.get(f"/audit?{query}")
    assert (answer.status, answer.json["detail"]) == (400, fault)


def test_only_operators_read_the_log(submitter: Caller) -> None:
    assert submitter.get("/audit").status == 403
    assert Caller(None).get("/audit").status == 401


def follow(wanted: AuditFilter, *, after: int, count: int) -> list[AuditLine]:
    """Return the lines once there are as many; other transactions may delay them."""
    end = time.monotonic() + 30
    while len(found := follow_audit_lines(wanted, after=after, limit=10)) < count:
        assert time.monotonic() < end, found
    return found


@pytest.mark.serial
def test_a_follower_gets_each_line_once_in_order(operator: Caller) -> None:
    start = AuditLine.objects.order_by("pk").last()
    assert start is not None
    made = write("pool a", "pool b", "pool c")
    follow(AuditFilter(), after=start.pk, count=3)
    page = operator.get(f"/audit?after={start.pk}&limit=2").json
    following = operator.get(page["next"]).json
    found = [line["id"] for line in page["results"] + following["results"]]
    assert (found, following["next"]) == (made, None)
    assert operator.get(f"/audit?after={made[-1]}").json["results"] == []


@pytest.mark.serial
def test_a_follower_waits_for_transactions_that_began_before() -> None:
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")  # a writer that has not written yet
        made = write("pool a")
        assert follow_audit_lines(AuditFilter(), after=made[0] - 1, limit=10) == []
        other.commit()
        found = follow(AuditFilter(), after=made[0] - 1, count=1)
        assert [line.pk for line in found] == made
    finally:
        other.close()


def test_a_reader_of_some_projects_gets_their_lines_only(submitter: Caller) -> None:
    submitter.post("/jobs", JOB)
    project = Project.objects.get()
    found = follow(AuditFilter(project_ids=[project.pk]), after=0, count=2)
    assert {line.action for line in found} == {"create.project", "submit.job"}
    assert follow_audit_lines(AuditFilter(project_ids=[]), after=0, limit=10) == []


def test_management_commands_leave_lines_with_their_user() -> None:
    call_command("bootstrap", stdout=StringIO())
    call_command("enroll_cell", "cell-7", stdout=StringIO())
    lines = AuditLine.objects.filter(via="command")
    found = {line.action for line in lines}
    assert found >= {"create.user", "create.token", "enroll.cell"}
    assert all(line.actor.startswith("manage.py") for line in lines)


def test_the_origin_of_a_request_ends_with_it(operator: Caller) -> None:
    operator.put("/pools/p", {"strict_fifo": True})
    write("pool q")
    line = AuditLine.objects.get(subject="pool q")
    assert (line.via, line.token, line.address) == ("system", "", "")


def test_requests_to_the_web_process_have_their_origins(operator: Caller) -> None:
    """The web process runs views in threads; each line has the origin of its own request."""
    headers = [(b"authorization", operator.headers["Authorization"].encode())]
    headers.append((b"content-type", b"application/json"))
    for number in (1, 2):
        answer = call(
            application,
            "PUT",
            f"/api/v1/pools/p{number}",
            *headers,
            (b"x-request-id", f"r-{number}".encode()),
            body=b"{}",
            peer=f"203.0.113.{number}",
        )
        assert answer.status == 201
        line = AuditLine.objects.get(subject=f"pool p{number}")
        assert (line.actor, line.via, line.token) == ("olga", "token", "test")
        assert (line.request_id, line.address) == (f"r-{number}", f"203.0.113.{number}")


def test_an_unknown_address_is_empty(operator: Caller) -> None:
    """A proxy that is not trusted must not appear as the caller."""
    operator.send("PUT", "/pools/p", b"{}", "application/json", X_Forwarded_Proto="https")
    assert AuditLine.objects.get(subject="pool p").address == ""


def test_the_origin_is_read_when_the_line_is_written() -> None:
    origin = AuditOrigin()

    def find() -> AuditOrigin:
        return origin

    with bind_origin(find):
        origin = AuditOrigin("olga", request_id="r-1")
        with transaction.atomic():
            record(entry())
    line = AuditLine.objects.get(subject="pool p")
    assert (line.actor, line.request_id) == ("olga", "r-1")


READING_COMMANDS = {
    "check_invariants",
    "doctor",
    "placement_replay",
    "placement_snapshot",
    "copy_store",  # copies files to a store that no installation uses yet
}


def test_every_command_that_writes_is_an_origin_of_lines() -> None:
    for name, app in get_commands().items():
        if app == "controlplane":
            is_audited = issubclass(load_command_class(app, name).__class__, AuditedCommand)
            assert is_audited is (name not in READING_COMMANDS), name


def test_the_page_of_the_log_names_every_action() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert [action for action in Action if f"`{action}`" not in page] == []
