"""S3.2: what validators hold back, how sequencers order, which cells selectors choose."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Cell, Domain, Job, Project, Quota
from controlplane.queries.views.jobs import get_job
from controlplane.ticks import hooks
from tests.integration.loop.hook_probe import Probe, installed, raising
from tests.integration.loop.test_kinds import SERVICE
from tests.scenarios.stage import Stage


def quota(stage: Stage, scope: str, **limits: Any) -> None:
    whose = {"user": stage.owner, "project": Project.objects.get(), "domain": Domain.objects.get()}
    Quota.objects.create(**{scope: whose[scope], "highest_band": "production", **limits})


# --------------------------------------------------------------------------- validators


@pytest.mark.parametrize("scope", ["user", "project", "domain"])
def test_exhausted_quota_defers_with_used_requested_and_allowed(stage: Stage, scope: str) -> None:
    stage.cell()
    quota(stage, scope, resources={"cpu_millis": 250})
    job = stage.submit_small(replicas=3)
    stage.place()
    assert sorted(stage.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    why = stage.why(job)
    assert why["code"] == "quota_exceeded"
    figures = "0.2 cores used + 0.1 cores requested > 0.25 cores allowed"
    assert (f"quota of {scope}" in why["text"], figures in why["text"]) == (True, True)
    stage.succeed(stage.newest(job)[0])
    stage.place()
    assert sorted(stage.states(job)) == ["ASSIGNED", "ASSIGNED", "SUCCEEDED"]


def test_user_quota_applies_to_its_user_only(stage: Stage) -> None:
    stage.cell()
    quota(stage, "user", running_tasks=1)
    mine, other = stage.submit_small(replicas=2), stage.user("ann").submit_small(replicas=2)
    stage.place()
    assert sorted(stage.states(mine)) == ["ASSIGNED", "PENDING"]
    assert stage.states(other) == ["ASSIGNED", "ASSIGNED"]


def test_job_quota_counts_jobs_until_their_last_task_has_ended(stage: Stage) -> None:
    stage.cell()
    quota(stage, "user", running_jobs=1)
    first, second = stage.submit_small(replicas=2), stage.submit_small()
    stage.place()
    assert (stage.states(first), stage.states(second)) == (["ASSIGNED"] * 2, ["PENDING"])
    assert "running jobs" in stage.why(second)["text"]
    one, two = stage.newest(first)
    stage.succeed(one)
    stage.place()
    assert stage.states(second) == ["PENDING"]
    stage.succeed(two)
    stage.place()
    assert stage.states(second) == ["ASSIGNED"]


def test_running_job_is_not_blocked_by_its_own_job_quota(stage: Stage) -> None:
    stage.cell(cpu=200)
    quota(stage, "user", running_jobs=1)
    job = stage.submit_small(replicas=4)
    codes = []
    for _ in range(5):
        stage.place()
        codes.append(stage.why(job)["code"])
    assert codes == ["insufficient_resources"] * 5


@pytest.mark.parametrize("scope", ["user", "project", "domain"])
def test_quota_is_not_enforced_in_a_pool_without_its_validator(stage: Stage, scope: str) -> None:
    stage.cell()
    stage.cell_of("free", "cell-2", cpu=200)
    stage.policy("free", validators=["dependencies", "concurrency"])
    quota(stage, scope, resources={"cpu_millis": 200}, running_tasks=3)
    least = stage.submit_small(pool="free", band="batch", replicas=3)
    stage.place()
    assert sorted(stage.states(least)) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    # Its usage is shown; and a quota that does not bind is no reason to evict a task either.
    bound, urgent = stage.submit_small(), stage.submit_small(pool="free", band="production")
    stage.place()
    assert stage.states(bound) == ["PENDING"]
    assert stage.why(bound)["code"] == "quota_exceeded"
    assert sorted(stage.states(least)) == ["ASSIGNED", "PENDING", "PENDING"]
    stage.confirm(*(attempt for attempt in stage.newest(least) if attempt.finished_at))
    stage.place()
    # What the eviction freed is reserved for the more important task, also in the other pool.
    assert (stage.states(urgent), stage.states(bound)) == (["ASSIGNED"], ["PENDING"])
    # Of another limit it has the validator.
    stage.cell_of("free", "cell-3", cpu=200)
    stage.place()
    assert stage.states(least).count("ASSIGNED") == 2
    assert "running tasks" in stage.why(least)["text"]


def test_job_with_an_open_dependency_is_deferred(stage: Stage) -> None:
    stage.cell()
    first, attempt = stage.running()
    later = stage.submit_small(depends_on=[{"job": first.pk}], name="later")
    stage.place()
    assert stage.states(later) == ["PENDING"]
    assert stage.why(later)["code"] == "waiting_for_job"
    stage.succeed(attempt)
    stage.converge()
    stage.place()
    assert stage.states(later) == ["ASSIGNED"]


# --------------------------------------------------------------------------- sequencers


@pytest.mark.parametrize(("sequencer", "winner"), [("fifo", 0), ("lifo", 2)])
def test_fifo_takes_the_oldest_and_lifo_the_newest(
    stage: Stage, sequencer: str, winner: int
) -> None:
    stage.policy(sequencer=sequencer)
    stage.cell(cpu=100)
    jobs = [stage.submit_small() for _ in range(3)]
    stage.place()
    placed = [stage.states(job) == ["ASSIGNED"] for job in jobs]
    assert placed == [number == winner for number in range(3)]


def test_drf_favours_the_user_with_the_smallest_share(stage: Stage) -> None:
    stage.policy(sequencer="drf")
    stage.cell(cpu=800)
    ann, ben = stage.user("ann"), stage.user("ben")
    greedy = ann.submit_small(replicas=20)
    modest = ben.submit_small(replicas=20)
    stage.place()
    assert [stage.states(job).count("ASSIGNED") for job in (greedy, modest)] == [4, 4]


def test_fair_share_allocates_in_proportion_to_weights(stage: Stage) -> None:
    stage.policy(sequencer="fair_share")
    stage.cell(cpu=800)
    ann, ben = stage.user("ann"), stage.user("ben")
    Quota.objects.create(user=ann.owner, weight=3.0)
    jobs = [ann.submit_small(replicas=20), ben.submit_small(replicas=20)]
    stage.place()
    assert [stage.states(job).count("ASSIGNED") for job in jobs] == [6, 2]


# ---------------------------------------------------------------------------- selectors


def spread(stage: Stage, selector: str, replicas: int) -> Job:
    stage.policy(selector=selector)
    for number in (1, 2, 3):
        stage.cell(f"cell-{number}", cpu=400)
    job = stage.submit_small(replicas=replicas)
    stage.place()
    return job


def test_dispersed_takes_the_least_utilised_cells(stage: Stage) -> None:
    job = spread(stage, "dispersed", 3)
    assert sorted(stage.cells(job)) == ["cell-1", "cell-2", "cell-3"]


def test_concentrated_fills_one_cell_before_the_next(stage: Stage) -> None:
    job = spread(stage, "concentrated", 6)
    assert sorted(stage.cells(job)) == ["cell-1"] * 4 + ["cell-2"] * 2


def loaded(stage: Stage, name: str, used: dict[str, Any], cpu: int, memory: int = 4096) -> None:
    """A cell on which so much is in use."""
    stage.cell(name, cpu=cpu, memory=memory)
    Cell.objects.filter(name=name).update(labels={"name": name})
    here = [{"key": "name", "op": "in", "values": [name]}]
    task = stage.submit(name=f"load-{name}", constraints=here, resources=used)
    stage.place()
    assert stage.cells(task) == [name]


@pytest.mark.parametrize(("selector", "cell"), [("concentrated", "large"), ("dispersed", "small")])
def test_utilisation_is_measured_before_the_task_is_placed(
    stage: Stage, selector: str, cell: str
) -> None:
    """10 cores of which 30 % are in use, 2 cores of which 25 % are; the task adds 10 % and 50 %."""
    stage.policy(selector=selector)
    loaded(stage, "large", {"cpu": 3}, cpu=10_000)
    loaded(stage, "small", {"cpu": 0.5}, cpu=2_000)
    job = stage.submit(resources={"cpu": 1})
    stage.place()
    assert stage.cells(job) == [cell]


@pytest.mark.parametrize("names", [("cell-1", "cell-2"), ("cell-2", "cell-1")])
@pytest.mark.parametrize("selector", ["concentrated", "dispersed"])
def test_selector_breaks_ties_of_utilisation_by_cell_size(
    stage: Stage, selector: str, names: tuple[str, str]
) -> None:
    """Half of the disk of both is in use; the task requests little else."""
    stage.policy(selector=selector)
    small, large = names
    for name, memory in ((small, 1024), (large, 4096)):
        loaded(stage, name, {"cpu": 0.1, "disk": "5000Mi"}, cpu=8_000, memory=memory)
    job = stage.submit()
    stage.place()
    assert stage.cells(job) == [small if selector == "concentrated" else large]


@pytest.mark.parametrize(("selector", "cell"), [("concentrated", "disk"), ("dispersed", "cpu")])
def test_the_utilisation_of_a_cell_is_that_of_its_scarcest_resource(
    stage: Stage, selector: str, cell: str
) -> None:
    """80 % of the disk of one are in use and little else; of the other half of all."""
    stage.policy(selector=selector)
    loaded(stage, "cpu", {"cpu": 2, "memory": "2048Mi", "disk": "5000Mi"}, cpu=4_000)
    loaded(stage, "disk", {"cpu": 0.1, "memory": "16Mi", "disk": "8000Mi"}, cpu=4_000)
    job = stage.submit_small()
    stage.place()
    assert stage.cells(job) == [cell]


@pytest.mark.parametrize("selector", ["concentrated", "dispersed", "round_robin"])
def test_equal_cells_are_chosen_by_name(stage: Stage, selector: str) -> None:
    stage.policy(selector=selector)
    for name in ("b", "c", "a"):
        stage.cell(name, cpu=400)
    job = stage.submit_small()
    stage.place()
    assert stage.cells(job) == ["a"]


def test_tasks_placed_in_a_pass_count_for_the_next_task(stage: Stage) -> None:
    stage.policy(selector="dispersed")
    stage.cell("large", cpu=1_000)
    stage.cell("small", cpu=500)
    # 0 and 0: large; 0.1 and 0: small; 0.1 and 0.2: large; 0.2 and 0.2: large.
    job = stage.submit(replicas=4, resources={"cpu": 0.1})
    stage.place()
    assert sorted(stage.cells(job)) == ["large"] * 3 + ["small"]


def test_round_robin_continues_after_the_last_cell(stage: Stage) -> None:
    job = spread(stage, "round_robin", 1)
    assert stage.cells(job) == ["cell-1"]
    for name in ("cell-2", "cell-3", "cell-1"):
        stage.succeed(stage.last(job))
        job = stage.submit_small()
        stage.place()
        assert stage.cells(job) == [name]


# -------------------------------------------------------------------------------- hooks


def test_service_is_restarted_after_success_and_batch_is_not(stage: Stage) -> None:
    stage.cell()
    service, batch = stage.submit_small(**SERVICE), stage.submit_small(name="batch")
    stage.place()
    for job in (service, batch):
        stage.start(stage.last(job))
        stage.succeed(stage.last(job))
    assert (stage.states(batch), stage.state(batch)) == (["SUCCEEDED"], "SUCCEEDED")
    for number in (2, 3):
        assert (stage.states(service), stage.counters(service)) == (["PENDING"], (0, 0, 0))
        stage.wait(300)
        stage.place()
        assert stage.last(service).number == number
        stage.start(stage.last(service))
        stage.succeed(stage.last(service))


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    with installed(tmp_path, monkeypatch) as found:
        yield found


def test_terms_set_by_a_kind_are_validated_like_a_submission(stage: Stage, probe: Probe) -> None:
    stage.cell_of("default", "cell-1", zone="a")
    stage.cell_of("default", "cell-2", zone="b")
    zone = {"key": "zone", "op": "eq", "values": ["b"]}
    probe.acts["prepare"] = lambda terms: replace(terms, constraints=(zone,), env={"KIND": "1"})
    job = stage.submit_small(kind="probe")
    stage.place()
    assert stage.cells(job) == ["cell-2"]
    shown = get_job(job.pk)["groups"][0]["prepared"]
    assert shown == {"constraints": [{**zone, "required": True}], "env": {"KIND": "1"}}
    wrong = {"key": "zone", "op": "exists", "values": ["b"]}
    probe.acts["prepare"] = lambda terms: replace(terms, constraints=(wrong,))
    with pytest.raises(JobsRefused) as refused:
        stage.submit_small(kind="probe")
    [(_, fault)] = refused.value.faults
    assert fault.field == "constraints[0].values"
    assert fault.detail == "must be empty for exists (set by kind probe)"


@pytest.mark.parametrize("method", ["on_placed", "on_started", "on_end"])
def test_failing_hook_ends_only_its_own_job(stage: Stage, probe: Probe, method: str) -> None:
    stage.cell()
    bad, good = stage.submit_small(kind="probe", replicas=2), stage.submit_small(kind="probe")

    def act(argument: Any) -> Any:
        return raising(argument) if argument.job_id == bad.pk else getattr(argument, "event", None)

    probe.acts[method] = act
    stage.place()
    stage.start(*stage.newest(bad), *stage.newest(good))
    hooks.run()
    if method == "on_end":
        stage.succeed(stage.newest(bad)[0], stage.last(good))
    stage.converge()
    assert stage.state(bad) == "FAILED"
    assert stage.job(bad).ending_reason == "hook_failed"
    assert f"the hook probe failed in {method}" in stage.job(bad).failure_reason
    assert stage.states(good) == (["SUCCEEDED"] if method == "on_end" else ["RUNNING"])
