"""docs/troubleshooting.md on a live stack: scenes provoke the entries, and the remedies work.

Scenes that do not disturb others are played at once, outages one after the other. They take six
minutes, and need a machine with little other load: cells have a lease of ten seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from tests.e2e.entries import (
    cell_scenes,
    fault_scenes,
    image_scenes,
    outage_scenes,
    waiting_scenes,
)
from tests.e2e.entries.live import LiveStack
from tests.e2e.entries.scenes import Scene, Symptom, play
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.harness.small_disk import mounted
from tests.harness.troubleshooting import entries

SETTINGS = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "10",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
    "CELLRUN_CALLBACK_ALLOWED_NETWORKS": "127.0.0.0/8",
    "CELLRUN_STORE_MIN_FREE_MIB": "8",
}
STORE_MIB = 64
PATIENCE_SECONDS = 120.0
"""For one condition that a scene waits for."""

GROUPS: tuple[tuple[Scene, ...], ...] = (
    (
        *image_scenes.cast.scenes,
        *cell_scenes.cast.scenes,
        *fault_scenes.cast.scenes,
        *waiting_scenes.cast.scenes,
    ),
    tuple(outage_scenes.silence.scenes),
    (*outage_scenes.convergence.scenes, *cell_scenes.users.scenes),
    tuple(outage_scenes.database.scenes),
    tuple(outage_scenes.disk.scenes),
)
SCENES = tuple(scene for group in GROUPS for scene in group)
NOT_LIVE: Mapping[Symptom, str] = {
    Symptom("Alert", "cell_lost", 1): "its successor closes it within 5 s",
}
"""Symptoms that no scene provokes on a live stack, each with the cause."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen, and the errors of scenes by name."""

    seen: set[Symptom]
    left_open: set[tuple[str, str]] = field(default_factory=set)
    failed: dict[str, Exception] = field(default_factory=dict)


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest) -> Iterator[Result]:
    """Play the scenes of the tests that are selected."""
    items = [it for it in request.session.items if not it.get_closest_marker("skip")]
    names = {item.name.partition("[")[2].removesuffix("]") for item in items}
    groups = [[scene for scene in group if scene.name in names] for group in GROUPS]
    with open_folder() as folder:
        fault_scenes.install_plugins(folder / "plugins")
        store = folder / "home" / "artifacts"
        stack = RunningStack(
            folder / "home",
            cells=1,
            engine="process",
            PYTHONPATH=str(folder / "plugins"),
            **SETTINGS,
        )
        with mounted(store, STORE_MIB), stack, ExitStack() as ends:
            yield play_all(LiveStack(stack, ends), groups)
        assert remnants(folder) == []


def play_all(live: LiveStack, groups: Sequence[Sequence[Scene]]) -> Result:
    """Play group after group."""
    live.prepare([scene for group in groups for scene in group])
    result = Result(live.seen)
    for group in filter(None, groups):
        result.failed.update(play(live, group, seconds=PATIENCE_SECONDS))
        live.end_cells()
    with suppress(AssertionError):
        wait_until(lambda: close_quiet(live), seconds=PATIENCE_SECONDS, what="no alert is open")
    result.left_open.update(live.open_alerts())
    return result


def close_quiet(live: LiveStack) -> bool:
    """Let open alerts close by age if their causes have ended; return whether none is open."""
    closed = [live.closed(kind, subject).holds() for kind, subject in live.open_alerts()]
    return all(closed)


@pytest.mark.stack
@pytest.mark.soak
@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(it, id=it.name, marks=[pytest.mark.engine] if it.needs_engine else [])
        for it in SCENES
    ],
)
def test_symptoms_appear_and_the_remedy_ends_them(result: Result, scene: Scene) -> None:
    if scene.name in result.failed:
        raise result.failed[scene.name]
    assert set(scene.shows) <= result.seen


@pytest.mark.stack
@pytest.mark.soak
def test_no_cause_of_an_alert_lasts(result: Result) -> None:
    assert result.left_open == set()


def test_every_symptom_has_a_live_scene_or_a_cause_why_not() -> None:
    documented = {
        Symptom(section, code, number)
        for section in ("Reason", "Alert")
        for code, entry in entries(section).items()
        for number in range(len(entry.symptoms))
    }
    shown = {symptom for scene in SCENES for symptom in scene.shows}
    assert shown | NOT_LIVE.keys() == documented
    assert not shown & NOT_LIVE.keys()
