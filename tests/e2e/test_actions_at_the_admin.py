"""An operator runs each action of the admin's lists in a browser, on a stack with containers."""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from cellrun import Session
from tests.e2e.engine import remove_containers
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import session_of, shell_job, sleepers, wait_for_end
from tests.harness.chromium import new_page, started_browser

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.browser]

NOWHERE = "http://127.0.0.1:9/ended"
"""An address that refuses connections."""
DELETE = "delete_selected"
APPS = {"user": "auth", "group": "auth"}
LIST = re.compile("/admin/[a-z]+/[a-z]+/")


class Site:
    """A live stack, its operator in a browser, and rows for the actions."""

    def __init__(self, stack: RunningStack, page: Page) -> None:
        self.stack = stack
        self.page = page
        self.session: Session = session_of(stack, operator=True)
        self.ends = ExitStack()
        """Closed after each action."""
        self.offered: set[tuple[str, str]] = set()
        """(model, action) of the lists that were open."""

    def note_actions(self, model: str) -> None:
        """Add the actions of the open list, which has none without rows."""
        options = self.page.locator("select[name=action] option")
        names = options.evaluate_all("them => them.map(it => it.value)")
        self.offered |= {(model, name) for name in names if name}

    def stop(self, *names: str) -> None:
        """Stop processes of the stack by signals until the action has been run."""
        for pid in map(self.stack.pid_of, names):
            os.kill(pid, signal.SIGSTOP)
            self.ends.callback(os.kill, pid, signal.SIGCONT)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.environment["DATABASE_URL"], autocommit=True) as database:
            found = database.execute(statement, values)
            return found.fetchall() if found.description else []

    def id_of(self, table: str, **columns: object) -> Any:
        """Return the primary key of one row."""
        where = " AND ".join(f"{name} = %s" for name in columns)
        [(key,)] = self.sql(f"SELECT id FROM {table} WHERE {where}", *columns.values())
        return key

    def user(self, name: str) -> int:
        self.session.put_user(name)
        return int(self.id_of("auth_user", username=name))

    def waiting_job(self) -> int:
        """Submit a job that no cell can run."""
        large = {"cpu": 4_000}
        job = shell_job("true", name="waiting", resources=large, allow_unsatisfiable=True)
        return self.session.submit(job)["id"]

    def ended_job(self, script: str = "exit 3", **fields: Any) -> int:
        job = self.session.submit(shell_job(script, **fields))["id"]
        wait_for_end(self.session, job)
        return job

    def cell(self, name: str) -> int:
        return int(self.id_of("controlplane_cell", name=name))


Prepare = Callable[[Site], Any]
TICKS = ("convergence", "callbacks")


@dataclass(frozen=True, slots=True)
class Case:
    """An action on one row of a list.

    `row`: makes the row and returns its key. `audit`: the action of the line that it leaves.
    `holds`: a condition on the row afterwards, as SQL; without one, the row is deleted.
    """

    row: Prepare
    audit: str
    holds: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


def held_job(site: Site) -> int:
    job = site.waiting_job()
    site.session.hold_job(job, reason="wrong")
    return job


def bulk_operation(site: Site) -> int:
    site.waiting_job()
    site.stop(*TICKS)
    started = site.session.start_bulk("cancel", {"name": "waiting"}, reason="wrong")
    return int(started["id"])


def unconfirmed_attempt(site: Site) -> str:
    """Cancel a task whose cell does not respond: its stop stays unconfirmed."""
    job = site.session.submit(sleepers(1, 600, name="on-a-stopped-cell"))["id"]
    find = (
        "SELECT uid, cell_id FROM controlplane_attempt WHERE job_id = %s AND started_at IS NOT NULL"
    )
    wait_until(lambda: bool(site.sql(find, job)), seconds=60, what="the task runs")
    [(uid, cell)] = site.sql(find, job)
    [(name,)] = site.sql("SELECT name FROM controlplane_cell WHERE id = %s", cell)
    site.stop(name)
    site.session.cancel_job(job)
    ended = "SELECT 1 FROM controlplane_attempt WHERE uid = %s AND finished_at IS NOT NULL"
    wait_until(lambda: bool(site.sql(ended, uid)), seconds=60, what="the attempt has ended")
    return str(uid)


def abandoned_callback(site: Site) -> int:
    job = site.ended_job(callback={"url": NOWHERE})
    key = int(site.id_of("controlplane_callback", job_id=job))
    site.stop(*TICKS)
    site.sql(
        "UPDATE controlplane_callback SET state = 'abandoned', claim = NULL, ended_at = now()"
        " WHERE id = %s",
        key,
    )
    return key


def cache_entry(site: Site) -> int:
    site.ended_job("true", cache={"enabled": True})
    find = "SELECT id FROM controlplane_cacheentry"
    wait_until(lambda: bool(site.sql(find)), seconds=60, what="the result is stored")
    return int(site.sql(find)[-1][0])


def draining(site: Site) -> int:
    site.session.drain("cell-1")
    return site.cell("cell-1")


def cordoned(site: Site) -> int:
    site.session.cordon("cell-1")
    return site.cell("cell-1")


def quarantined(site: Site) -> int:
    site.sql(
        "UPDATE controlplane_cell SET state = 'QUARANTINED', quarantined_for = 'failures',"
        " quarantined_until = now() + '10 min' WHERE name = 'cell-1'"
    )
    return site.cell("cell-1")


def pool_with_held_losses(site: Site) -> int:
    site.stop(*TICKS)
    site.sql("UPDATE controlplane_pool SET loss_held_at = now() WHERE name = 'default'")
    return int(site.id_of("controlplane_pool", name="default"))


def alert(site: Site) -> int:
    site.stop(*TICKS)
    site.sql(
        "INSERT INTO controlplane_alert (kind, subject, text, raised_at, last_raised_at)"
        " VALUES ('dead_letters', 'inbox', 'three messages', now(), now())"
    )
    return int(site.id_of("controlplane_alert", subject="inbox", text="three messages"))


def token(site: Site) -> int:
    return int(site.session.create_token("laptop", expires_in_days=1)["id"])


def project(name: str, prepare: Callable[[Session], object] = lambda session: None) -> Prepare:
    def make(site: Site) -> int:
        site.session.put_project(f"default/{name}")
        prepare(site.session)
        return int(site.id_of("controlplane_project", name=name))

    return make


def identity(site: Site) -> int:
    site.sql(
        "INSERT INTO controlplane_oidcidentity (user_id, issuer, subject, created_at)"
        " VALUES (%s, 'https://login.example.org', 's-1', now())",
        site.user("iris"),
    )
    return int(site.id_of("controlplane_oidcidentity", subject="s-1"))


def user_with_second_factor(site: Site) -> int:
    user = site.user("tom")
    site.sql(
        "INSERT INTO controlplane_totpdevice (user_id, sealed, last_step, created_at)"
        " VALUES (%s, '', 0, now())",
        user,
    )
    return user


def schedule(name: str, *, paused: bool = False) -> Prepare:
    def make(site: Site) -> int:
        document = {"cron": "@yearly", "job": shell_job("true")}
        site.session.put_schedule(name, document)
        if paused:
            site.session.pause_schedule(name)
        return int(site.id_of("controlplane_schedule", name=name))

    return make


def address(name: str) -> Prepare:
    def make(site: Site) -> int:
        site.session.put_notification_address(name, "json://127.0.0.1:9")
        return int(site.id_of("controlplane_notificationaddress", name=name))

    return make


def rule(name: str) -> Prepare:
    def make(site: Site) -> int:
        address(f"of-{name}")(site)
        site.session.put_notification_rule(name, {"address": f"of-{name}", "about": "alerts"})
        return int(site.id_of("controlplane_notificationrule", name=name))

    return make


def secret(site: Site) -> int:
    site.session.put_secret("password", {"value": "x9y"})
    return int(site.id_of("controlplane_secret", name="password"))


def quota(site: Site) -> int:
    site.user("quentin")
    site.session.put_quota("user", "quentin", {"running_jobs": 3})
    return int(site.sql("SELECT max(id) FROM controlplane_quota")[0][0])


def membership(site: Site) -> int:
    user = site.user("mary")
    site.session.put_member("user", "mary", role="viewer", project="default/default")
    return int(site.id_of("controlplane_membership", user_id=user))


def group(site: Site) -> int:
    site.sql("INSERT INTO auth_group (name) VALUES ('late shift')")
    return int(site.id_of("auth_group", name="late shift"))


REASON = {"Reason": "burnt"}
HELD = "EXISTS (SELECT FROM controlplane_hold h WHERE h.project_id = t.id AND h.ended_at IS NULL)"
CASES = {
    ("job", "hold_jobs"): Case(Site.waiting_job, "hold.job", "is_held", REASON),
    ("job", "release_jobs"): Case(held_job, "release.job", "NOT is_held", REASON),
    ("job", "move_to_front"): Case(Site.waiting_job, "move.job", "queue_rank < 0"),
    ("job", "move_to_end"): Case(Site.waiting_job, "move.job", "queue_rank > 0"),
    ("job", "change_band"): Case(Site.waiting_job, "move.job", "band = 3", {"Band": "batch"}),
    ("job", "cancel_jobs"): Case(
        Site.waiting_job, "cancel.job", "finished_at IS NOT NULL OR ending_as IS NOT NULL", REASON
    ),
    ("job", "retry_jobs"): Case(
        Site.ended_job,
        "retry.job",
        "EXISTS (SELECT FROM controlplane_job again WHERE again.retry_of_id = t.id)",
    ),
    ("job", "delete_jobs"): Case(Site.ended_job, "delete.job", "deleted_at IS NOT NULL"),
    ("bulkoperation", "stop_operations"): Case(
        bulk_operation, "stop.bulk_operation", "state = 'stopped'"
    ),
    ("attempt", "release_attempts"): Case(
        unconfirmed_attempt, "release.attempt", "released_at IS NOT NULL", REASON
    ),
    ("callback", "deliver_again"): Case(abandoned_callback, "repeat.callback", "state = 'waiting'"),
    ("cacheentry", "evict_entries"): Case(
        cache_entry, "evict.cache_entry", "evicted_at IS NOT NULL"
    ),
    ("cell", "cordon"): Case(
        lambda site: site.cell("cell-1"), "cordon.cell", "ordered_state = 'CORDONED'", REASON
    ),
    ("cell", "uncordon"): Case(cordoned, "uncordon.cell", "ordered_state = 'READY'", REASON),
    ("cell", "drain"): Case(
        lambda site: site.cell("cell-1"), "drain.cell", "ordered_state = 'DRAINING'", REASON
    ),
    ("cell", "change_deadline"): Case(draining, "drain.cell", "drain_deadline_at IS NOT NULL"),
    ("cell", "unquarantine"): Case(
        quarantined, "unquarantine.cell", "state <> 'QUARANTINED'", REASON
    ),
    ("pool", "confirm_losses"): Case(pool_with_held_losses, "confirm.loss", "loss_held_at IS NULL"),
    ("alert", "close_alerts"): Case(alert, "close.alert", "cleared_at IS NOT NULL"),
    ("apitoken", "revoke"): Case(token, "revoke.token"),
    ("project", "hold"): Case(project("one"), "hold.project", HELD, REASON),
    ("project", "release"): Case(
        project("two", lambda session: session.hold_project("default/two", reason="late")),
        "release.project",
        f"NOT {HELD}",
        REASON,
    ),
    ("project", "archive"): Case(project("three"), "change.project", "archived_at IS NOT NULL"),
    ("project", "unarchive"): Case(
        project("four", lambda session: session.put_project("default/four", archived=True)),
        "change.project",
        "archived_at IS NULL",
    ),
    ("oidcidentity", "unlink"): Case(identity, "unlink.identity"),
    ("user", "reset_second_factor"): Case(
        user_with_second_factor,
        "reset.second_factor",
        "NOT EXISTS (SELECT FROM controlplane_totpdevice d WHERE d.user_id = t.id)",
    ),
    ("schedule", "pause"): Case(schedule("one"), "change.schedule", "is_paused"),
    ("schedule", "resume"): Case(schedule("two", paused=True), "change.schedule", "NOT is_paused"),
    ("schedule", "run_now"): Case(
        schedule("three"),
        "run.schedule",
        "EXISTS (SELECT FROM controlplane_job j WHERE j.guid LIKE '%%three/%%')",
    ),
    ("schedule", "delete_schedules"): Case(schedule("four"), "delete.schedule"),
    ("notificationaddress", "send_tests"): Case(
        address("one"), "test.notification_address", "name = 'one'"
    ),
    ("notificationaddress", DELETE): Case(address("two"), "delete.notification_address"),
    ("notificationrule", "send_tests"): Case(
        rule("one"), "test.notification_address", "name = 'one'"
    ),
    ("notificationrule", DELETE): Case(rule("two"), "delete.notification_rule"),
    ("secret", DELETE): Case(secret, "delete.secret"),
    ("quota", DELETE): Case(quota, "delete.quota"),
    ("membership", DELETE): Case(membership, "remove.role"),
    ("group", DELETE): Case(group, "delete.group"),
    ("user", DELETE): Case(lambda site: site.user("bob"), "delete.user"),
    # Last: the cell does not come back.
    ("cell", "revoke"): Case(
        lambda site: site.cell("cell-2"), "revoke.cell_key", "revoked_at IS NOT NULL", REASON
    ),
}
"""(model, action) -> what it does."""

OTHER_TESTS = {("cell", "enrolment")}
"""`test_cells_page` drives its form."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    settings = {"CELLRUN_CALLBACK_ALLOWED_NETWORKS": "127.0.0.0/8"}
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=2, **settings) as stack:
            with started_browser() as browser:
                page, _ = new_page(browser, stack.environment["CELLRUN_URL"])
                page.goto("/admin/login/")
                page.get_by_label("Username").fill(stack.environment["CELLRUN_ADMIN_USER"])
                page.get_by_label("Password").fill(stack.environment["CELLRUN_ADMIN_PASSWORD"])
                page.get_by_role("button", name="Log in").click()
                expect(page).to_have_title("Overview | Cellrun")
                yield Site(stack, page)
            remove_containers(stack.installation)
        assert remnants(stack.home) == []


def list_of(model: str) -> str:
    return f"/admin/{APPS.get(model, 'controlplane')}/{model}/"


def choose(site: Site, model: str, key: object, action: str) -> None:
    """Select a row and an action of a list, and run it."""
    page = site.page
    page.goto(list_of(model))
    site.note_actions(model)
    page.locator(f'input.action-select[value="{key}"]').check()
    page.locator("select[name=action]").select_option(action)
    page.locator("button[name=index]").click()


def confirm(page: Page, fields: Mapping[str, str]) -> None:
    """Fill in and send the form that follows."""
    for label, value in fields.items():
        entry = page.get_by_label(label)
        if entry.evaluate("it => it.tagName") == "SELECT":
            entry.select_option(value)
        else:
            entry.fill(value)
    page.locator(".cellrun-danger, form:has([name=post]) [type=submit]").first.click()


@pytest.mark.parametrize(("model", "action"), CASES)
def test_an_action_of_a_list_does_what_it_is_for(site: Site, model: str, action: str) -> None:
    case = CASES[model, action]
    table = "auth_" if model in APPS else "controlplane_"
    column = "uid" if model == "attempt" else "id"
    find = f"SELECT {case.holds or 'true'} FROM {table}{model} t WHERE {column} = %s"
    newest = "SELECT action, actor FROM controlplane_auditline WHERE id > %s"
    with site.ends:
        key = case.row(site)
        [(before,)] = site.sql("SELECT max(id) FROM controlplane_auditline")
        choose(site, model, key, action)
        expect(site.page.locator("form").last).to_be_visible()
        confirm(site.page, case.fields)
        expect(site.page.locator("[name=confirmed], [name=post]")).to_have_count(0)
        assert (case.audit, "admin") in site.sql(newest, before)
        assert site.sql(find, key) == ([(True,)] if case.holds else [])


def test_every_action_of_a_list_has_a_case(site: Site) -> None:
    """The pages list what can be run, also those of models without a case."""
    site.page.goto("/admin/")
    links = site.page.locator("a[href]").evaluate_all("them => them.map(it => it.pathname)")
    lists = {link for link in links if LIST.fullmatch(link)}
    assert len(lists) >= len({model for model, _ in CASES}) - 2
    for link in sorted(lists):
        site.page.goto(link)
        site.note_actions(link.split("/")[3])
    assert site.offered == set(CASES) | OTHER_TESTS
