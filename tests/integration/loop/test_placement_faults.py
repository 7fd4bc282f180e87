"""A fault in one row, plugin or pool does not delay the others, and raises an alert."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from controlplane import clock, plugins
from controlplane.commands.tenancy.accounts import create_user
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Cell, Job, Pool, Shape, Task, TaskGroup, TickState
from controlplane.queries.sql import execute
from controlplane.queries.views.explain import explain_task
from controlplane.ticks import placement_pass
from tests.integration.loop.conftest import Loop

SMALL = {"cpu": 0.5, "memory": "64Mi"}
LARGE = {"cpu": 64, "memory": "64Mi"}
POOLS = ("default", "other", "third")

BROKEN = '''
"""Third-party plugins that do everything wrong."""


class Raising:
    uses_shares = keeps_place = False

    def check(self, request):
        raise RuntimeError("check is broken")

    def turns(self, queue):
        raise RuntimeError("turns is broken")

    def select(self, offer, count):
        raise RuntimeError("select is broken")

    def prepare(self, terms):
        return terms

    def on_end(self, end):
        raise RuntimeError("on_end is broken")


class Nonsense(Raising):
    def check(self, request):
        return "yes"

    def turns(self, queue):
        yield "next"

    def select(self, offer, count):
        return [count] * (len(offer.room) + 1)

    def on_end(self, end):
        return "whatever"


class Endless(Nonsense):
    def turns(self, queue):
        from controlplane.domain.placement.model.interfaces import Turn

        while True:
            yield Turn([0], 0)

    def select(self, offer, count):
        return [count + 1_000_000 for _ in offer.room]
'''
NAMES = ("raising", "nonsense", "endless")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """They are installed, as a package is that offers them by entry points."""
    site = tmp_path_factory.mktemp("site")
    (site / "of_somebody.py").write_text(BROKEN)
    folder = site / "of_somebody-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: of-somebody\nVersion: 1\n")
    lines = [f"{name} = of_somebody:{name.capitalize()}" for name in NAMES]
    points = [f"[cellrun.{kind}]\n" + "\n".join(lines) + "\n" for kind in plugins.Kind]
    (folder / "entry_points.txt").write_text("\n".join(points))
    sys.path.insert(0, str(site))
    plugins.forget()
    yield
    sys.path.remove(str(site))
    sys.modules.pop("of_somebody", None)
    plugins.forget()


def alerts(kind: str) -> list[str]:
    """What was brought before an operator: subject and text."""
    found = Alert.objects.filter(kind=kind, cleared_at=None).order_by("id")
    return [f"{alert.subject}: {alert.text}" for alert in found]


def reason_of(job: Job) -> dict[str, Any]:
    """Why the tasks of the job's one shape wait."""
    [found] = Shape.objects.filter(pk__in=TaskGroup.objects.filter(job=job).values("shape_id"))
    assert found.pending_reason is not None
    return dict(found.pending_reason)


# ------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    "row",
    [
        {"resources": {"cpu_millis": "many"}},
        {"resources": {"cpu_millis": -1000}},
        {"resources": {"cpu_millis": 10**30}},
        {"resources": {"cpu_millis": None}},
        {"resources": ["cpu_millis"]},
        {"resources": {"licence": 0}},
        {"constraints": [{"key": "zone"}]},
        {"constraints": [{"key": "zone", "op": "resembles", "values": ["a"], "required": True}]},
        {"constraints": "zone"},
        {"band": 7},
        {"pending_reason": "tired"},
    ],
    ids=str,
)
def test_invalid_shape_does_not_block_other_shapes(loop: Loop, row: dict[str, Any]) -> None:
    Pool.objects.update(tokens={"licence": 1})
    loop.cell()
    bad, good = loop.submit(resources={"cpu": 1, "memory": "1Gi"}), loop.submit()
    shape = TaskGroup.objects.get(job=bad).shape_id
    Shape.objects.filter(pk=shape).update(**row)
    for _ in range(2):
        loop.place()
        assert loop.states(good) == ["ASSIGNED"]
    is_harmless = row in ({"resources": {"licence": 0}}, {"pending_reason": "tired"})
    assert loop.states(bad) == ["ASSIGNED" if is_harmless else "PENDING"]
    if not is_harmless:
        [text] = alerts("shape_unreadable")
        assert text.startswith(f"shape {shape}: its tasks are not placed: ")
    assert not alerts("pool_skipped")


@pytest.mark.parametrize(
    "resources", [{"cpu_millis": "many"}, {"cpu_millis": None}, ["cpu_millis"], {"cpu_millis": {}}]
)
def test_invalid_job_is_skipped_with_an_alert(loop: Loop, resources: Any) -> None:
    loop.cell()
    jobs = [loop.submit() for _ in range(3)]
    TaskGroup.objects.filter(job=jobs[1]).update(resources=resources)
    loop.place()
    assert [loop.states(job) for job in jobs] == [["ASSIGNED"], ["PENDING"], ["ASSIGNED"]]
    [text] = alerts("job_skipped")
    assert text.startswith(f"placement of job {jobs[1].pk}: ")
    late = loop.submit()
    loop.place()
    assert loop.states(late) == ["ASSIGNED"]


# ---------------------------------------------------------------------------- plugins


@pytest.mark.parametrize("name", NAMES)
def test_failing_validator_blocks_placement_with_an_alert(
    loop: Loop, broken: None, name: str
) -> None:
    loop.cell()
    Pool.objects.update(validators=[name])
    job = loop.submit()
    loop.place()
    assert loop.states(job) == ["PENDING"]
    assert (reason_of(job)["code"], name in reason_of(job)["text"]) == ("plugin_failed", True)
    [text] = alerts("plugin_failed")
    assert text.startswith(f"validator {name} of pool default: ")
    Pool.objects.update(validators=[])
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["sequencer", "selector"])
def test_failing_sequencer_or_selector_is_replaced_by_the_default(
    loop: Loop, broken: None, kind: str, name: str
) -> None:
    loop.cell("cell-1", cpu=2000)
    loop.cell("cell-2", cpu=2000)
    Pool.objects.update(**{kind: name})
    first, second = loop.submit(replicas=3), loop.submit(replicas=3)
    loop.place()
    assert loop.states(first) == ["ASSIGNED"] * 3
    assert sorted(loop.states(second)) == ["ASSIGNED", "PENDING", "PENDING"]
    [text] = alerts("plugin_failed")
    assert text.startswith(f"{kind} {name} of pool default: ")


@pytest.mark.parametrize("name", ["raising", "nonsense"])
def test_failing_on_end_hook_keeps_the_reported_outcome(
    loop: Loop, broken: None, name: str
) -> None:
    cell = loop.cell()
    job = loop.submit(kind=name, replicas=2, max_task_failures=1)
    loop.place()
    for attempt, code in zip(loop.attempts(job), (0, 3), strict=True):
        cell.end(attempt, S.FAILED if code else S.SUCCEEDED, exit_code=code)
    assert loop.states(job) == ["SUCCEEDED", "FAILED"]


def test_uninstalled_plugins_are_skipped_with_alerts(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    job = loop.submit()
    Pool.objects.update(sequencer="gone", selector="lost", validators=["start_time", "missed"])
    Job.objects.update(kind="forgotten")
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]
    plugins_in_alerts = {text.split(" of pool")[0] for text in alerts("plugin_failed")}
    assert plugins_in_alerts == {"sequencer gone", "selector lost", "validator missed"}
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    assert loop.state(job) == "SUCCEEDED"


@pytest.mark.parametrize("sequencer", ["fifo", "lifo", "drf", "fair_share", "fair_projects"])
def test_pass_at_its_task_limit_raises_no_sequencer_alert(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, sequencer: str
) -> None:
    loop.cell()
    Pool.objects.update(strict_fifo=True, sequencer=sequencer)
    monkeypatch.setattr(placement_pass, "TASKS_PER_PASS", 2)
    jobs = [loop.submit(replicas=3) for _ in range(2)]
    # Of the first one a task avoids the only cell: it is placed apart from the others.
    avoiding = Task.objects.filter(job=jobs[0])[:1].values("pk")
    Task.objects.filter(pk__in=avoiding).update(avoid_cell_ids=[Cell.objects.get().pk])
    loop.place()
    assert sorted(state for job in jobs for state in loop.states(job)).count("ASSIGNED") == 4
    assert not Alert.objects.exists()


def test_unreadable_pool_does_not_block_other_pools(loop: Loop) -> None:
    loop.cell()
    Pool.objects.create(name="other")
    bad, good = loop.submit(pool="other"), loop.submit()
    Pool.objects.filter(name="other").update(tokens=["licence"])
    loop.place()
    assert (loop.states(bad), loop.states(good)) == (["PENDING"], ["ASSIGNED"])
    [text] = alerts("pool_skipped")
    assert text.startswith(f"pool {Pool.objects.get(name='other').pk}: ")


def test_unreadable_pool_suspends_only_its_own_deadlines(
    loop: Loop,
) -> None:
    Pool.objects.create(name="other")
    Pool.objects.create(name="third")
    jobs = [loop.submit(pool=name, scheduling_timeout_seconds=3600) for name in POOLS]
    Pool.objects.filter(name="other").update(tokens=["licence"])
    TaskGroup.objects.update(deadline_at=clock.now())
    for _ in range(2):
        loop.place()
        loop.converge()
        assert [loop.state(job) for job in jobs] == ["UNSCHEDULABLE", "PENDING", "UNSCHEDULABLE"]
        assert explain_task(loop.tasks(jobs[1])[0].pk, now=clock.now())["considered_at"] is None
    Pool.objects.filter(name="other").update(tokens={})
    loop.place()
    loop.converge()
    assert loop.state(jobs[1]) == "UNSCHEDULABLE"


def test_deadlines_before_the_last_pass_of_an_unreadable_pool_apply(loop: Loop) -> None:
    """Its deadlines up to the last complete pass over the pool are over."""
    Pool.objects.create(name="other")
    early, late = (loop.submit(pool="other", scheduling_timeout_seconds=3600) for _ in "ab")
    loop.place()
    seen_at = clock.now()
    Pool.objects.filter(name="other").update(tokens=["licence"])
    loop.place()
    covered_at = TickState.objects.get(name="placement").covered_at
    assert covered_at is not None
    assert covered_at >= seen_at
    considered = explain_task(loop.tasks(early)[0].pk, now=clock.now())["considered_at"]
    assert considered < seen_at
    TaskGroup.objects.filter(job=early).update(deadline_at=considered)
    TaskGroup.objects.filter(job=late).update(deadline_at=seen_at)
    loop.converge()
    assert (loop.state(early), loop.state(late)) == ("UNSCHEDULABLE", "PENDING")


def test_invalid_preemption_victim_does_not_block_placement(loop: Loop) -> None:
    loop.cell(cpu=2000)
    victim = loop.submit(band="batch", resources={"cpu": 1, "memory": "64Mi"})
    loop.place()
    Job.objects.filter(pk=victim.pk).update(band=7)
    urgent = loop.submit(band="production", resources={"cpu": 2, "memory": "64Mi"})
    small = loop.submit(resources=SMALL)
    loop.place()
    assert [loop.states(job) for job in (victim, urgent, small)] == [
        ["ASSIGNED"],
        ["PENDING"],
        ["ASSIGNED"],
    ]
    assert len(alerts("no_room_made")) == 1
    assert not alerts("pool_skipped")


# ------------------------------------------------------------------- much that cannot be


def test_pool_without_cells_has_a_reason_and_does_not_block_others(loop: Loop) -> None:
    loop.cell()
    Pool.objects.create(name="empty")
    waiting, good = loop.submit(pool="empty", replicas=3), loop.submit()
    loop.place()
    assert (loop.states(waiting), loop.states(good)) == (["PENDING"] * 3, ["ASSIGNED"])
    reason = reason_of(waiting)
    assert (reason["code"], reason["text"]) == ("no_cell_matches", "the pool has no cell")


class Work:
    """Statements that were made, and rows that they read or wrote."""

    def __init__(self) -> None:
        self.statements, self.rows = Counter[str](), 0

    def count(self, execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        verb = sql.split()[0]
        self.statements[verb] += 1
        self.rows += max(args[-1]["cursor"].rowcount, 0) if verb != "SET" else 0
        return result


def work_of(action: Callable[[], object]) -> Work:
    """What `action` costs the database."""
    work = Work()
    with connection.execute_wrapper(work.count):
        action()
    return work


def add_waiting(job: Job, count: int) -> None:
    """So many tasks more, as if they had been submitted with the job's first."""
    task = Task.objects.get(job=job)
    names = [field.column for field in Task._meta.concrete_fields if field.name != "id"]
    taken = ", ".join(f'"{name}"' if name != "index" else "n" for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    execute(
        f"INSERT INTO controlplane_task ({columns}) SELECT {taken} FROM controlplane_task,"
        " generate_series(1, %s) n WHERE id = %s",
        [count, task.pk],
    )
    execute(
        "UPDATE controlplane_taskgroup SET counts[2] = counts[2] + %s, replicas = replicas + %s,"
        " task_count = task_count + %s, min_available = min_available + %s WHERE job_id = %s",
        [count, count, count, count, job.pk],
    )
    Job.objects.filter(pk=job.pk).update(min_available=count + 1)


def test_pass_cost_does_not_grow_with_tasks_that_never_fit(loop: Loop) -> None:
    """Ten jobs of 10,000 each: what a pass reads and writes depends on shapes alone."""
    loop.cell()
    jobs = [loop.submit(resources=LARGE, allow_unsatisfiable=True) for _ in range(10)]
    loop.place()
    few = work_of(loop.place)
    for job in jobs:
        add_waiting(job, 9_999)
    assert Task.objects.filter(state=S.PENDING).count() == 100_000
    many = work_of(loop.place)
    assert (many.statements, many.rows) == (few.statements, few.rows)
    assert many.rows < 60
    other, _ = create_user(name="other", password=None, is_operator=False)
    good = replace(loop, owner=other).submit(resources=SMALL)
    loop.place()
    assert loop.states(good) == ["ASSIGNED"]
    reason = reason_of(jobs[0])
    assert reason["code"] == "insufficient_resources"
    assert "lacks 60 of 64 cores" in reason["text"]
