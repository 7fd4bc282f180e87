"""The example package, installed as its README says: each of its plugins decides what it should."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane import clock, plugins
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Pool, Shape
from tests.integration.loop.conftest import Loop

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


def test_all_of_them_are_installed_behind_the_built_in_ones(installed: None) -> None:
    for kind, name in {
        plugins.Kind.VALIDATOR: "quiet_hours",
        plugins.Kind.SEQUENCER: "smallest_first",
        plugins.Kind.SELECTOR: "by_name",
        plugins.Kind.HOOK: "tolerant",
    }.items():
        assert plugins.names_of(kind)[-1] == name


def test_the_smallest_goes_first_to_the_first_cell_by_name(installed: None, loop: Loop) -> None:
    loop.cell("b", cpu=9000)
    loop.cell("a", cpu=1500)
    choose(sequencer="smallest_first", selector="by_name")
    large = loop.submit(resources={"cpu": 1, "memory": "64Mi"})
    small = loop.submit(resources={"cpu": 0.5, "memory": "64Mi"}, replicas=2)
    loop.place()
    places = Attempt.objects.values_list("job_id", "cell__name")
    assert sorted(places) == [(large.pk, "b"), (small.pk, "a"), (small.pk, "a")]


def test_batch_work_waits_for_the_night_and_says_so(
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


def test_a_kind_of_job_takes_an_exit_status_for_success(installed: None, loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(kind="tolerant", replicas=2, max_task_failures=1)
    loop.place()
    for attempt, code in zip(loop.attempts(job), (3, 4), strict=True):
        cell.end(attempt, S.FAILED, exit_code=code)
    assert loop.states(job) == ["SUCCEEDED", "FAILED"]
