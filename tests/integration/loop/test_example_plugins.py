"""The example package, installed as its README describes: each plugin decides as expected."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane import clock, plugins
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell, Pool, Shape
from controlplane.ticks import hooks
from tests.integration.loop.conftest import Loop
from tests.integration.loop.test_kinds import sent_spec

EXAMPLES = Path(__file__).parents[3] / "examples" / "plugins"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package is on the path, with its entry points."""
    target, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    subprocess.run(["cp", "-r", str(EXAMPLES), str(source)], check=True)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-qq", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source / "plugins")]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    sys.path.insert(0, str(target))
    plugins.forget()
    yield
    sys.path.remove(str(target))
    for name in [name for name in sys.modules if name.startswith("cellrun_examples")]:
        del sys.modules[name]
    plugins.forget()


def choose(**policy: object) -> None:
    pool = Pool.objects.get()
    for name, value in policy.items():
        setattr(pool, name, value)
    pool.full_clean()
    pool.save()


def test_example_plugins_are_listed_after_the_built_in_plugins(installed: None) -> None:
    for kind, name in {
        plugins.Kind.VALIDATOR: "quiet_hours",
        plugins.Kind.SEQUENCER: "smallest_first",
        plugins.Kind.SELECTOR: "by_name",
        plugins.Kind.HOOK: "tolerant",
    }.items():
        assert plugins.names_of(kind)[-1] == name
    assert plugins.names_of(plugins.Kind.HOOK)[-2] == "licensed"


def test_smallest_first_and_by_name_decide_the_placement(installed: None, loop: Loop) -> None:
    loop.cell("b", cpu=9000)
    loop.cell("a", cpu=1500)
    choose(sequencer="smallest_first", selector="by_name")
    large = loop.submit(resources={"cpu": 1, "memory": "64Mi"})
    small = loop.submit(resources={"cpu": 0.5, "memory": "64Mi"}, replicas=2)
    loop.place()
    places = Attempt.objects.values_list("job_id", "cell__name")
    assert sorted(places) == [(large.pk, "b"), (small.pk, "a"), (small.pk, "a")]


def test_quiet_hours_defer_batch_jobs_with_a_reason(
    installed: None, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.cell()
    choose(validators=["quiet_hours"])
    batch, other = loop.submit(band="batch"), loop.submit()
    noon = datetime(2031, 5, 4, 12, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: noon)
    loop.place()
    assert (loop.states(batch), loop.states(other)) == (["PENDING"], ["ASSIGNED"])
    reason = Shape.objects.exclude(pending_reason=None).get().pending_reason
    assert (reason["code"], reason["begins"]) == ("quiet_hours", 20)
    monkeypatch.setattr(clock, "now", lambda: noon.replace(hour=21))
    loop.place()
    assert loop.states(batch) == ["ASSIGNED"]


def test_tolerant_kind_treats_an_exit_status_as_success(installed: None, loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(kind="tolerant", replicas=2, max_task_failures=1)
    loop.place()
    for attempt, code in zip(loop.attempts(job), (3, 4), strict=True):
        cell.end(attempt, S.FAILED, exit_code=code)
    assert loop.states(job) == ["SUCCEEDED", "FAILED"]


def test_licensed_kind_sets_terms_and_observes_attempts(
    installed: None, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cellrun_examples.licensed")
    loop.cell("a")
    cell = loop.cell("b")
    Cell.objects.filter(name="b").update(labels={"licensed": "yes"})
    job = loop.submit(kind="licensed", replicas=2, max_task_failures=1)
    loop.place()
    hooks.run()
    assert [attempt.cell.name for attempt in loop.attempts(job)] == ["b", "b"]
    assert sent_spec(cell).env == {"LICENCE_SERVER": "licences.example:27000"}
    for attempt in loop.attempts(job):
        cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    hooks.run()
    first, second = loop.attempts(job)
    cell.end(first, S.SUCCEEDED, exit_code=0)
    cell.end(second, S.FAILED, exit_code=1)
    assert loop.states(job) == ["SUCCEEDED", "FAILED"]
    messages = [text for text in caplog.messages if "licence" in text]
    assert messages == [
        f"attempt {first.uid} on cell b takes a licence",
        f"attempt {second.uid} on cell b takes a licence",
        f"attempt {first.uid} gives its licence back",
        f"attempt {second.uid} gives its licence back",
    ]


def test_licensed_kind_ends_a_job_with_too_many_tasks(installed: None, loop: Loop) -> None:
    loop.cell("a")
    Cell.objects.update(labels={"licensed": "yes"})
    job = loop.submit(kind="licensed", replicas=3)
    loop.place()
    hooks.run()
    loop.converge()
    job.refresh_from_db()
    assert loop.state(job) == "FAILED"
    assert job.failure_reason == "a job has 2 licences at most, for tasks 0 to 1"
