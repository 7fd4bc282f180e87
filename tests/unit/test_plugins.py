"""Plugins of other packages: found by entry point, by name; what is broken or taken is refused."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controlplane import plugins
from controlplane.domain.hooks.built_in import BUILT_IN as HOOKS
from controlplane.domain.placement.plugins.selectors import BUILT_IN as SELECTORS
from controlplane.domain.placement.plugins.sequencers import BUILT_IN as SEQUENCERS
from controlplane.domain.placement.plugins.validators import BUILT_IN as VALIDATORS
from controlplane.plugins import Kind

MODULE = '''
class Closed:
    """Admits nothing."""

    def check(self, request):
        return None


class First:
    keeps_place = False

    def select(self, offer, count):
        return offer.room


class Turns:
    uses_shares = True

    def turns(self, queue):
        return iter(())


class Hook:
    def prepare(self, terms):
        return terms

    def on_end(self, end):
        return None


class Mute:
    """Has no method that a plugin needs."""


class NeedsMore:
    def __init__(self, needed):
        self.needed = needed

    def check(self, request):
        return None


class Fails:
    def __init__(self):
        raise RuntimeError("no licence")
'''

LEAVES = "import sys\n\nsys.exit(3)\n"

ENTRY_POINTS = """
[cellrun.validators]
closed = theatre_plugins:Closed
concurrency = theatre_plugins:Closed
mute = theatre_plugins:Mute
needs_more = theatre_plugins:NeedsMore
fails = theatre_plugins:Fails
gone = theatre_plugins:NotThere
nowhere = theatre_plugins_that_nobody_has:Closed
leaves = theatre_plugins_that_leave:Closed

[cellrun.sequencers]
turns = theatre_plugins:Turns

[cellrun.selectors]
first = theatre_plugins:First
dispersed = theatre_plugins:First

[cellrun.hooks]
stage = theatre_plugins:Hook
half = theatre_plugins:Closed
"""


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a third-party package."""
    info = tmp_path / "theatre_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theatre-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "theatre_plugins.py").write_text(MODULE)
    (tmp_path / "theatre_plugins_that_leave.py").write_text(LEAVES)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    yield
    sys.modules.pop("theatre_plugins", None)
    plugins.forget()


@pytest.fixture
def nothing_else() -> Iterator[None]:
    """Forget the known plugins before and after the test."""
    plugins.forget()
    yield
    plugins.forget()


@pytest.mark.usefixtures("nothing_else")
@pytest.mark.parametrize(
    ("kind", "built_in"),
    [
        (Kind.VALIDATOR, VALIDATORS),
        (Kind.SEQUENCER, SEQUENCERS),
        (Kind.SELECTOR, SELECTORS),
        (Kind.HOOK, HOOKS),
    ],
)
def test_built_in_plugins_are_found_by_name(kind: Kind, built_in: dict[str, type]) -> None:
    assert plugins.names_of(kind) == list(built_in)
    for name, made in built_in.items():
        assert isinstance(plugins.get(kind, name), made)


@pytest.mark.usefixtures("distribution")
def test_installed_plugins_of_every_kind_follow_the_built_in_ones() -> None:
    with capture_logs():
        found = {kind: plugins.names_of(kind) for kind in Kind}
    assert found == {
        Kind.VALIDATOR: [*VALIDATORS, "closed"],
        Kind.SEQUENCER: [*SEQUENCERS, "turns"],
        Kind.SELECTOR: [*SELECTORS, "first"],
        Kind.HOOK: [*HOOKS, "stage"],
    }
    assert type(plugins.get(Kind.VALIDATOR, "closed")).__name__ == "Closed"
    assert plugins.get(Kind.SEQUENCER, "turns").uses_shares is True
    # One instance for the whole process.
    assert plugins.get(Kind.SELECTOR, "first") is plugins.get(Kind.SELECTOR, "first")


@pytest.mark.usefixtures("distribution")
def test_broken_plugin_or_duplicate_name_is_logged_and_refused() -> None:
    with capture_logs() as lines:
        for kind in Kind:
            plugins.names_of(kind)
    refused = {(line["kind"], line["name"]): line["why"] for line in lines}
    assert {line["event"] for line in lines} == {"plugin_refused"}
    assert {line["log_level"] for line in lines} == {"error"}
    why = {
        ("validators", "concurrency"): "the name is taken",
        ("validators", "mute"): "check",
        ("validators", "needs_more"): "needed",
        ("validators", "fails"): "no licence",
        ("validators", "gone"): "NotThere",
        ("validators", "nowhere"): "theatre_plugins_that_nobody_has",
        ("validators", "leaves"): "SystemExit(3)",
        ("selectors", "dispersed"): "the name is taken",
        ("hooks", "half"): "prepare, on_end",
    }
    assert refused.keys() == why.keys()
    for key, words in why.items():
        assert words in refused[key]
    assert isinstance(plugins.get(Kind.SELECTOR, "dispersed"), SELECTORS["dispersed"])
    with pytest.raises(plugins.NotInstalled, match="no validator named mute is installed"):
        plugins.get(Kind.VALIDATOR, "mute")


@pytest.mark.usefixtures("distribution")
def test_installed_plugins_are_loaded_once_per_process() -> None:
    with capture_logs() as lines:
        plugins.names_of(Kind.SELECTOR)
        plugins.get(Kind.SELECTOR, "first")
        assert len(lines) == 1
        plugins.forget()
        plugins.names_of(Kind.SELECTOR)
        assert len(lines) == 2


def test_a_field_of_a_pool_names_its_kind() -> None:
    assert Kind.of_field("sequencer") is Kind.SEQUENCER
    assert Kind.of_field("selector") is Kind.SELECTOR
    assert Kind.of_field("validators") is Kind.VALIDATOR
