"""docs/troubleshooting.md: each alert has the text of its entry, and closes after the remedy.

A scene breaks something, yields the subject of the alert, and then does what the entry recommends.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client, override_settings

from controlplane import clock
from controlplane.commands.cells import floods
from controlplane.commands.hooks import registry
from controlplane.commands.hooks.bounded_calls import BoundedCalls
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.notifications.configure import RuleFields, put_address, put_rule
from controlplane.commands.state.apply import apply
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.messages.reports import Register
from controlplane.contract.states import TaskState as S
from controlplane.domain.alerts import ALERTS, QUIET_SECONDS
from controlplane.domain.roles import Role
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.inbox.batches import Inbox
from controlplane.models import Alert, Attempt, Job, Pool, Schedule, Shape, TaskGroup
from controlplane.queries.sql import execute
from controlplane.storage import folder as store
from controlplane.ticks import convergence, hooks, placement
from tests.harness.troubleshooting import entries, is_symptom
from tests.integration.api.conftest import change_setting
from tests.integration.callbacks.receiver import Receiver
from tests.integration.loop.conftest import FakeCell
from tests.integration.loop.hook_probe import installed, raising
from tests.integration.loop.test_cells import fail
from tests.integration.loop.test_failing_rules import held
from tests.integration.loop.test_hostile_inbox import BEAT, Seconds, flood, seal
from tests.integration.loop.test_key_rotation import rotate
from tests.integration.loop.test_unreadable_groups import poison
from tests.integration.notifications.conftest import pass_at
from tests.integration.onlooker import broken as broken
from tests.integration.pending_scenes import lacks_image
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage


@dataclass(frozen=True)
class Installation:
    """An installation to break, and an operator."""

    stage: Stage
    settings: Any
    monkeypatch: pytest.MonkeyPatch
    folder: Path
    client: Client
    token: str

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        """Send a request of the operator."""
        done = self.client.generic(
            method,
            f"/api/v1{path}",
            data=json.dumps(body or {}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        assert done.status_code < 300, done.content

    def pass_time(self, seconds: float, *silent: FakeCell) -> None:
        """Let time pass, tick by tick."""
        for _ in range(round(seconds / 5)):
            self.stage.wait(5, *silent)
            self.stage.converge()

    def run_ticks(self, seconds: float) -> None:
        """Let time pass with ticks that see the time since the last one."""
        for _ in range(round(seconds / 5)):
            self.stage.wait(5)
            convergence.run(memory=self.stage.memory)


@pytest.fixture
def installation(
    stage: Stage,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    broken: None,
) -> Iterator[Installation]:
    operator = User.objects.create_superuser("olga", password="x")
    token = create_api_token(user=operator, name="test", role=Role.OPERATOR, now=clock.now())
    client = Client()
    client.force_login(operator)
    root = tmp_path / "store"
    own = django_settings.CELLRUN.model_copy(update={"artifact_root": root})
    with override_settings(CELLRUN=own):
        yield Installation(stage, settings, monkeypatch, tmp_path, client, token)


@contextmanager
def refusing(change: str, table: str, condition: str) -> Iterator[None]:
    """Let PostgreSQL refuse changes of some rows."""
    execute(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'this row is refused'; END $$;
        CREATE TRIGGER refuse BEFORE {change} ON {table}
        FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()
        """
    )
    try:
        yield
    finally:
        execute(f"DROP TRIGGER refuse ON {table}; DROP FUNCTION refuse()")


Scene = Callable[[Installation], Iterator[str]]

# ------------------------------------------------------------------------------------ cells


def start_anew(cell: FakeCell) -> str:
    """Start the cell without its journal: return the answer to its registration."""
    if cell.incarnation == "one":
        cell.incarnation, cell.seq = "two", 0
    return cell.register().verdict


def four(it: Installation) -> list[FakeCell]:
    return [it.stage.cell(f"cell-{number}") for number in range(1, 5)]


def loses_a_cell(it: Installation) -> Iterator[str]:
    cell = it.stage.cell()
    it.stage.lose(cell)
    yield "cell-1"
    assert start_anew(cell) == "accepted"


def loses_a_replaced_cell(it: Installation) -> Iterator[str]:
    cell = it.stage.cell()
    assert start_anew(cell) == "refused"
    it.stage.lose(cell)
    yield "cell-1"
    assert start_anew(cell) == "accepted"


def loses_most_of_a_pool(it: Installation) -> Iterator[str]:
    silent = four(it)[:3]
    it.pass_time(60, *silent)
    yield "default"
    it.send("POST", "/pools/default/confirm-loss")
    it.pass_time(5, *silent)


def loses_most_of_a_pool_that_proceeds(it: Installation) -> Iterator[str]:
    it.stage.policy(mass_loss="proceed")
    it.pass_time(65, *four(it)[:3])
    yield "default"
    it.pass_time(10)


def duplicates_a_cell(it: Installation) -> Iterator[str]:
    cell = it.stage.cell()
    duplicate = FakeCell(it.stage, cell.name, cell.capacity)
    assert start_anew(duplicate) == "refused"
    yield "cell-1"  # the second process is stopped


def differs_from_its_enrolment(it: Installation) -> Iterator[str]:
    cell = it.stage.cell()
    put_pool(name="secure", changes={})
    facts: dict[str, Any] = {"drivers": ("docker",), "task_types": ("container",)}
    cell.send(Register(cell.capacity, pool="secure", **facts).body())
    yield "cell-1"
    cell.send(Register(cell.capacity, pool="default", **facts).body())


def cannot_be_registered(it: Installation) -> Iterator[str]:
    cell = FakeCell(it.stage, "cell-2", {"cpu_millis": 1000})
    with refusing("UPDATE", "controlplane_cell", "NEW.name = 'cell-2'"):
        cell.send(Register(cell.capacity, task_types=("container",)).body())
        yield "cell-2"
    assert cell.register().verdict == "accepted"


def cannot_end_the_former_key(it: Installation) -> Iterator[str]:
    following = rotate(it.stage.cell())
    it.stage.fake_cells["cell-1"] = following
    change_setting(it.settings, redis_users=True)
    address, it.settings.CELERY_BROKER_URL = it.settings.CELERY_BROKER_URL, "redis://127.0.0.1:1/0"
    it.stage.wire.sent.clear()
    assert following.register().verdict == "accepted"
    yield "cell-1"
    change_setting(it.settings, redis_users=False)
    it.settings.CELERY_BROKER_URL = address


def floods_the_inbox(it: Installation) -> Iterator[str]:
    timer = Seconds()
    cell, other = it.stage.cell(), it.stage.cell("other")
    inbox = Inbox(sync_seconds=0.0, timer=timer)
    flood(inbox, timer, cell, other, windows=3)
    inbox.apply([seal(other, BEAT)])
    yield "cell-1"  # its second process is stopped


def uses_up_redis(it: Installation) -> Iterator[str]:
    """The guard of Redis finds this; its own tests flood a real Redis."""
    it.stage.cell()
    floods.quarantine_closed("cell-1", "it floods inbox.3", seconds=240, now=clock.now())
    yield "cell-1"


def fills_a_shard(it: Installation) -> Iterator[str]:
    """The guard of Redis finds this; its own tests flood a real Redis."""
    floods.alert_dropped("inbox.3", messages=7, size_bytes=80 << 20, now=clock.now())
    yield "inbox.3"


def loses_a_batch(it: Installation) -> Iterator[str]:
    it.stage.inbox.note_lost(500, OperationalError("the server closed the connection"))
    it.stage.inbox.apply([])
    yield "inbox"


def receives_nothing_of_all_cells(it: Installation) -> Iterator[str]:
    it.pass_time(65, *four(it))
    yield "cells"
    it.pass_time(5)


def does_not_confirm_a_stop(it: Installation) -> Iterator[str]:
    it.stage.cell()
    job, attempt = it.stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    it.pass_time(300)
    yield "cell-1"
    it.stage.confirm(attempt)


def fails_whatever_it_starts(it: Installation) -> Iterator[str]:
    fail(it.stage, it.stage.cell(cpu=100_000), 10)
    it.stage.converge()
    yield "cell-1"
    it.send("POST", "/cells/cell-1/unquarantine")


def cannot_pull_an_image(it: Installation) -> Iterator[str]:
    lacks_image(it.stage)
    yield "lost:1"
    it.stage.wait(61)
    it.stage.cell("cell-3")
    it.stage.place()
    it.stage.start(*Attempt.objects.filter(released_at=None))


def holds_an_exclusive_task(it: Installation) -> Iterator[str]:
    cell = it.stage.cell()
    _, attempt = it.stage.running(exclusive="strict")
    it.stage.lose(cell)
    yield f"attempt {attempt.uid}"
    it.send("POST", f"/attempts/{attempt.uid}/release", {"reason": "the machine is scrap"})


# ------------------------------------------------------------------------------ data and store


def walk(it: Installation) -> None:
    """Let a tick check all jobs."""
    it.stage.wait(3600)
    it.stage.converge()


def has_wrong_counts(it: Installation) -> Iterator[str]:
    it.stage.submit(replicas=3)
    walk(it)
    it.stage.is_tampered = True
    execute("UPDATE controlplane_taskgroup SET counts[5] = 1, counts[2] = 2")
    walk(it)
    yield "rule recount"  # it is repaired already
    walk(it)


def contradicts_itself(it: Installation) -> Iterator[str]:
    job = it.stage.submit()
    cancel_job(job_id=job.pk, reason="", force=False, actor="ann", now=clock.now())
    execute("UPDATE controlplane_job SET state = 4, ending_as = NULL")
    walk(it)
    yield f"job {job.pk}"
    it.send("DELETE", f"/jobs/{job.pk}")
    walk(it)


def cannot_delete_files(it: Installation) -> Iterator[str]:
    it.stage.cell()
    _, attempt = it.stage.running(ttl_seconds_after_finished=0)
    store.append_log(attempt.uid, "stdout", offset=0, content=b"hello")
    it.stage.succeed(attempt)
    in_the_way = django_settings.CELLRUN.artifact_root / "discarded"
    if in_the_way.exists():
        in_the_way.rmdir()
    in_the_way.touch()
    it.stage.wait(1)
    it.stage.converge()
    yield "artifact store"
    os.unlink(in_the_way)


def has_a_full_store(it: Installation) -> Iterator[str]:
    before = it.settings.CELLRUN
    it.settings.CELLRUN = before.model_copy(update={"store_min_free_mib": 1_000_000_000})
    it.stage.converge()
    yield "artifact store"
    it.settings.CELLRUN = before


# --------------------------------------------------------------------- the control plane itself


def cannot_lock_a_job(it: Installation) -> Iterator[str]:
    it.stage.cell()
    job, _ = it.stage.placed()
    it.stage.converge()  # the walks over all jobs are not due again
    it.stage.wait(600)
    with held(job):
        it.stage.converge()
    yield f"unanswered of job {job.pk}"  # the session has ended


def skips_a_job(it: Installation) -> Iterator[str]:
    job = it.stage.submit()
    poisoned = {"ending_as": S.KILLED, "ending_reason": "no such reason"}
    Job.objects.filter(pk=job.pk).update(**poisoned)
    it.stage.converge()
    yield Alert.objects.get(kind="job_skipped").subject
    Job.objects.filter(pk=job.pk).update(ending_reason="cancelled")


def skips_a_pool(it: Installation) -> Iterator[str]:
    it.stage.cell()
    it.stage.submit()
    Pool.objects.update(tokens=["licence"])
    it.stage.place()
    yield f"pool {Pool.objects.get().pk}"
    it.send("PUT", "/pools/default", {"tokens": {}})
    it.stage.place()


def makes_no_room(it: Installation) -> Iterator[str]:
    it.stage.cell(cpu=2000)
    job, attempt = it.stage.running(band="batch")
    Job.objects.filter(pk=job.pk).update(band=7)
    it.stage.submit(band="production", resources={"cpu": 2, "memory": "64Mi"})
    it.stage.place()
    yield "pool default"
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    it.stage.confirm(attempt)
    it.stage.place()


def has_a_failing_validator(it: Installation) -> Iterator[str]:
    Pool.objects.update(validators=["broken"])
    it.stage.cell()
    it.stage.submit()
    it.stage.place()
    yield "validator broken of pool default"
    it.send("PUT", "/pools/default", {"validators": []})
    it.stage.place()


def has_a_failing_hook(it: Installation) -> Iterator[str]:
    it.monkeypatch.setattr(registry, "_calls", BoundedCalls())
    with installed(it.folder, it.monkeypatch) as probe:
        probe.acts["on_placed"] = raising
        it.stage.cell()
        it.stage.placed(kind="probe")
        hooks.run()
        yield "hook probe"
        probe.acts.clear()


def cannot_read_a_shape(it: Installation) -> Iterator[str]:
    it.stage.cell()
    job = it.stage.submit()
    shape = TaskGroup.objects.get(job=job).shape_id
    Shape.objects.filter(pk=shape).update(resources={"cpu_millis": "many"})
    it.stage.place()
    yield f"shape {shape}"
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    it.stage.place()


def cannot_read_a_group(it: Installation) -> Iterator[str]:
    it.stage.cell()
    job = it.stage.submit()
    poison(job, {"novelty": 1})
    it.stage.place()
    yield f"group {TaskGroup.objects.get(job=job).pk}"
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    it.stage.confirm(it.stage.last(job))


def places_nothing(it: Installation) -> Iterator[str]:
    placement.run(woken=False)
    it.pass_time(65)
    yield "placement"
    placement.run(woken=False)


def has_never_placed(it: Installation) -> Iterator[str]:
    it.pass_time(70)
    yield "placement"
    placement.run(woken=False)


def was_down(it: Installation) -> Iterator[str]:
    it.stage.converge()
    it.stage.wait(600)
    convergence.run(memory=it.stage.memory)
    yield "convergence"
    it.run_ticks(60)


def receives_nothing_of_its_own(it: Installation) -> Iterator[str]:
    it.stage.converge()
    for _ in range(12):
        it.stage.passed += timedelta(seconds=5)
        convergence.run(memory=it.stage.memory)
    yield "convergence"
    it.run_ticks(60)


def fails_at_a_rule(it: Installation) -> Iterator[str]:
    condition = "NEW.kind = 'image_not_pulled'"
    with refusing("INSERT", "controlplane_alert", condition):
        lacks_image(it.stage)
        yield "rule images"


def fails_to_send_to_an_address(it: Installation) -> Iterator[str]:
    now = clock.now()
    with Receiver() as receiver, override_settings(CELLRUN=permitting_this_machine()):
        put_address(name="ops", url=receiver.url("500").replace("http:", "json:"), now=now)
        columns = {"about": "alerts", "kinds": ["cell_lost"], "group_wait_seconds": 0}
        put_rule(name="all", wanted=RuleFields("ops", columns), now=now)
        apply(Effects(alerts=[RaiseAlert("cell_lost", "gone", "silent")]), now=now)
        for hour in range(3):
            pass_at(now + timedelta(hours=hour), django_settings)
        yield "ops"
        receiver.answers["500"] = 200
        pass_at(now + timedelta(hours=4), django_settings)


def refuses_the_jobs_of_a_schedule(it: Installation) -> Iterator[str]:
    job = {"name": "report", "image": "x", "command": ["true"], "allow_unsatisfiable": True}
    wanted = {"cron": "* * * * *", "catch_up": "all", "overlap": "allow", "job": job}
    it.send("PUT", "/schedules/reports", wanted)
    refused = {**job, "pool": "removed"}
    Schedule.objects.update(job=refused, next_at=clock.now() - timedelta(minutes=4))
    it.stage.converge()
    yield "schedule reports in default/default"
    it.send("PUT", "/schedules/reports", wanted)


def permitting_this_machine() -> Any:
    networks = (ip_network("127.0.0.0/8"),)
    return django_settings.CELLRUN.model_copy(update={"callback_allowed_networks": networks})


SCENES: dict[str, tuple[Scene, ...]] = {
    "cell_lost": (loses_a_cell, loses_a_replaced_cell),
    "mass_loss": (loses_most_of_a_pool, loses_most_of_a_pool_that_proceeds),
    "cell_twin": (duplicates_a_cell,),
    "cell_mismatch": (differs_from_its_enrolment,),
    "registration_failed": (cannot_be_registered,),
    "rotation_failed": (cannot_end_the_former_key,),
    "cell_flooding": (floods_the_inbox, uses_up_redis),
    "inbox_dropped": (fills_a_shard,),
    "inbox_batch_lost": (loses_a_batch,),
    "cells_silent": (receives_nothing_of_all_cells,),
    "stop_unconfirmed": (does_not_confirm_a_stop,),
    "cell_failing": (fails_whatever_it_starts,),
    "image_not_pulled": (cannot_pull_an_image,),
    "exclusive_held": (holds_an_exclusive_task,),
    "repaired": (has_wrong_counts,),
    "contradiction": (contradicts_itself,),
    "files_not_deleted": (cannot_delete_files,),
    "store_full": (has_a_full_store,),
    "job_skipped": (cannot_lock_a_job, skips_a_job),
    "pool_skipped": (skips_a_pool,),
    "no_room_made": (makes_no_room,),
    "plugin_failed": (has_a_failing_validator, has_a_failing_hook),
    "shape_unreadable": (cannot_read_a_shape, cannot_read_a_group),
    "tick_late": (places_nothing, has_never_placed),
    "control_plane_gap": (was_down, receives_nothing_of_its_own),
    "rule_failed": (fails_at_a_rule,),
    "notification_failing": (fails_to_send_to_an_address,),
    "schedule_refused": (refuses_the_jobs_of_a_schedule,),
}
"""By kind; of each kind in the order of the symptoms in its entry."""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(kind, number, id=scene.__name__)
        for kind, found in SCENES.items()
        for number, scene in enumerate(found)
    ],
)
def test_alert_has_the_documented_text_and_closes_after_the_remedy(
    installation: Installation, kind: str, number: int
) -> None:
    with closing(SCENES[kind][number](installation)) as scene:
        subject = next(scene)
        alert = Alert.objects.get(kind=kind, subject=subject, cleared_at=None)
        assert is_symptom(entries("Alert")[kind].symptoms[number], alert.text), alert.text
        assert f"! alert {kind}: {subject}: {alert.text}" in run_doctor()
        page = f"/admin/controlplane/alert/{alert.pk}/change/"
        assert kind in installation.client.get(page).content.decode()
        next(scene, None)
    installation.stage.converge()
    alert.refresh_from_db()
    if kind in QUIET_SECONDS and alert.cleared_at is None:
        installation.stage.wait(QUIET_SECONDS[kind])
        installation.stage.place()  # raises it again if its cause lasts
        installation.stage.converge()
        alert.refresh_from_db()
    assert alert.cleared_at is not None


def run_doctor() -> str:
    output = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=output)
    return output.getvalue()


def test_every_symptom_of_an_alert_has_its_scene() -> None:
    symptoms = {kind: len(entry.symptoms) for kind, entry in entries("Alert").items()}
    assert {kind: len(found) for kind, found in SCENES.items()} == symptoms
    assert symptoms.keys() == ALERTS.keys()
