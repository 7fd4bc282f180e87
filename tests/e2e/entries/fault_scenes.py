"""Alerts about data, plugins, the store, and notifications: broken rows, files and receivers."""

import json
from pathlib import Path

import requests

from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Cast, Sight, Steps, alert, reason
from tests.e2e.entries.waiting_scenes import LONG
from tests.integration.callbacks.receiver import Receiver

cast = Cast()

PLUGINS = """
from pathlib import Path

REPAIRED = Path(__file__).parent / "repaired"


class Broken:
    def check(self, request):
        raise RuntimeError("no luck")


class Probe:
    def prepare(self, terms):
        return terms

    def on_placed(self, event):
        if not REPAIRED.exists():
            raise RuntimeError("no luck")

    def on_end(self, end):
        return end.event
"""
ENTRY_POINTS = """
[cellrun.validators]
broken = scene_plugins:Broken
[cellrun.hooks]
probe = scene_plugins:Probe
"""
BARE = "bare"
"""A pool without a cell."""


def install_plugins(folder: Path) -> None:
    """Install a package with a validator and a hook that fail, as pip would leave it."""
    info = folder / "scene_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "scene_plugins.py").write_text(PLUGINS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scene-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


@cast.scene(reason("plugin_failed"), alert("plugin_failed", 0), steady=["validated"])
def has_a_failing_validator(it: LiveStack) -> Steps:
    it.run("pools", "validated", "--set", "validators=[dependencies, broken]")
    job = it.submit("validated")
    yield it.waits(job, "plugin_failed")
    subject = "validator broken of pool validated"
    yield it.shows("plugin_failed", subject, 0)
    it.run("pools", "validated", "--set", "validators=[dependencies]")
    yield it.ends(job)
    yield it.closed("plugin_failed", subject)


@cast.scene(alert("plugin_failed", 1), steady=["hooked"])
def has_a_failing_hook(it: LiveStack) -> Steps:
    job = it.submit("hooked", LONG, kind="probe")
    yield it.ends(job, "FAILED")
    yield it.shows("plugin_failed", "hook probe", 1)
    (it.plugins / "repaired").touch()
    yield it.ends(it.submit("hooked", kind="probe"))
    yield it.closed("plugin_failed", "hook probe")


@cast.scene(alert("repaired"))
def has_wrong_counts(it: LiveStack) -> Steps:
    job = it.submit(BARE, replicas=3)
    it.sql("UPDATE controlplane_taskgroup SET counts[5] = 1, counts[2] = 2 WHERE job_id = %s", job)
    yield it.shows("repaired", "rule recount")
    yield it.closed("repaired", "rule recount")
    assert it.session.job(job)["task_status_count"]["main"]["phase"]["PENDING"] == 3
    it.session.cancel_job(job)


@cast.scene(alert("contradiction"))
def contradicts_itself(it: LiveStack) -> Steps:
    job = it.submit(BARE)
    it.session.cancel_job(job)
    yield it.ends(job, "KILLED")
    it.sql("UPDATE controlplane_job SET state = 4, ending_as = NULL WHERE id = %s", job)
    yield it.shows("contradiction", f"job {job}")
    it.run("delete", job, "--yes")
    yield it.closed("contradiction", f"job {job}")


@cast.scene(alert("files_not_deleted"))
def cannot_delete_files(it: LiveStack) -> Steps:
    discarded = it.store / "discarded"
    if discarded.exists():
        discarded.rename(it.store.parent / "discarded-before")
    discarded.touch()
    job = it.submit_process("default", "echo hello", ttl_seconds_after_finished=0)
    yield it.shows("files_not_deleted", "artifact store")
    discarded.unlink()
    yield Sight(
        "the rows of the job are gone",
        lambda: not it.sql("SELECT FROM controlplane_job WHERE id = %s", job),
    )
    yield it.closed("files_not_deleted", "artifact store")


@cast.scene(alert("job_skipped", 1))
def skips_a_job(it: LiveStack) -> Steps:
    job = it.submit(BARE)
    poisoned = "UPDATE controlplane_job SET ending_as = 6, ending_reason = %s WHERE id = %s"
    it.sql(poisoned, "no such reason", job)
    subject = f"ending_jobs of job {job}"
    yield it.shows("job_skipped", subject, 1)
    it.sql(poisoned, "cancelled", job)
    yield it.ends(job, "KILLED")
    yield it.closed("job_skipped", subject)


@cast.scene(alert("pool_skipped"), steady=["skipped"])
def skips_a_pool(it: LiveStack) -> Steps:
    yield it.cell_is(it.cell_in("skipped"), "READY")
    tokens = "UPDATE controlplane_pool SET tokens = %s WHERE name = 'skipped' RETURNING id"
    [(pool,)] = it.sql(tokens, json.dumps(["licence"]))
    job = it.submit("skipped")
    yield it.shows("pool_skipped", f"pool {pool}")
    it.run("pools", "skipped", "--set", "tokens={}")
    yield it.ends(job)
    yield it.closed("pool_skipped", f"pool {pool}")


@cast.scene(alert("no_room_made"), steady=["room"])
def makes_no_room(it: LiveStack) -> Steps:
    lower = it.submit("room", LONG, cpu=4, band="batch")
    yield it.runs(lower)
    it.sql("UPDATE controlplane_job SET band = 7 WHERE id = %s", lower)
    job = it.submit("room", cpu=4, band="interactive")
    yield it.shows("no_room_made", "pool room")
    it.session.cancel_job(lower)
    yield it.ends(job)
    yield it.closed("no_room_made", "pool room")


@cast.scene(alert("shape_unreadable", 0), steady=["shapes"])
def cannot_read_a_shape(it: LiveStack) -> Steps:
    cell = it.cell_in("shapes")
    yield it.cell_is(cell, "READY")
    it.session.cordon(cell)
    job = it.submit("shapes", cpu=0.37)
    [(shape, whole)] = it.sql(
        'UPDATE controlplane_shape s SET resources = s.resources || \'{"cpu_millis": "many"}\''
        " FROM controlplane_taskgroup g WHERE g.shape_id = s.id AND g.job_id = %s"
        " RETURNING s.id, s.resources",
        job,
    )
    assert whole["cpu_millis"] == "many"
    it.session.uncordon(cell)
    yield it.shows("shape_unreadable", f"shape {shape}", 0)
    it.session.cancel_job(job)
    yield it.ends(it.submit("shapes"))
    yield it.closed("shape_unreadable", f"shape {shape}")


@cast.scene(alert("shape_unreadable", 1), steady=["unread"])
def cannot_read_a_group(it: LiveStack) -> Steps:
    cell = it.cell_in("unread")
    yield it.cell_is(cell, "READY")
    it.session.cordon(cell)
    job = it.submit("unread", LONG)
    [(group,)] = it.sql(
        "UPDATE controlplane_taskgroup SET launch = launch || '{\"novelty\": 1}'"
        " WHERE job_id = %s RETURNING id",
        job,
    )
    it.session.uncordon(cell)
    yield it.shows("shape_unreadable", f"group {group}", 1)
    it.session.cancel_job(job)
    yield it.ends(it.submit("unread"))
    yield it.closed("shape_unreadable", f"group {group}")


@cast.scene(alert("rule_failed"))
def fails_at_a_rule(it: LiveStack) -> Steps:
    with it.refusing("refuse_sample", "INSERT", "poolsample", "true"):
        yield it.shows("rule_failed", "rule samples")
    yield it.closed("rule_failed", "rule samples")


@cast.scene(alert("notification_failing"))
def fails_to_send_to_an_address(it: LiveStack) -> Steps:
    with Receiver() as receiver:
        url = receiver.url("500").replace("http:", "json:")
        send(it, "PUT", "notification-addresses/ops", {"url": url})
        rule = {"address": "ops", "about": "alerts", "group_wait_seconds": 0}
        send(it, "PUT", "notification-rules/all", rule)
        yield it.shows("notification_failing", "ops")
        receiver.answers["500"] = 200
        send(it, "POST", "notification-addresses/ops/test", {})
        yield it.closed("notification_failing", "ops")
        send(it, "DELETE", "notification-addresses/ops", {})


@cast.scene(alert("schedule_refused"))
def refuses_the_jobs_of_a_schedule(it: LiveStack) -> Steps:
    wanted = {
        "cron": "* * * * *",
        "catch_up": "all",
        "overlap": "allow",
        "job": {"name": "report", "image": "x", "command": ["true"], "allow_unsatisfiable": True},
    }
    send(it, "PUT", "schedules/reports", wanted)
    # Six instants are due, and no document of them is valid any more.
    assert it.sql(
        'UPDATE controlplane_schedule SET job = job || \'{"pool": "removed"}\','
        " next_at = date_trunc('minute', now()) - interval '5 minutes'"
        " WHERE name = 'reports' RETURNING id"
    )
    yield it.shows("schedule_refused", "schedule reports in default/default")
    send(it, "PUT", "schedules/reports", {**wanted, "cron": "0 0 1 1 *"})
    yield it.closed("schedule_refused", "schedule reports in default/default")
    send(it, "DELETE", "schedules/reports", {})


def send(it: LiveStack, method: str, path: str, body: dict[str, object]) -> None:
    """Send a request of the operator for which the client has no method."""
    requests.request(
        method,
        f"{it.stack.environment['CELLRUN_URL']}/api/v1/{path}",
        json=body,
        headers={"Authorization": f"Bearer {it.stack.environment['CELLRUN_OPERATOR_TOKEN']}"},
        timeout=60,
    ).raise_for_status()
