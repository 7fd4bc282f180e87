"""A kind of job whose hook a test controls, in a package as pip would leave it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest

from controlplane import plugins
from controlplane.domain.hooks.interface import AttemptEnd, EndOfJob, GroupTerms, LifeEvent
from controlplane.domain.state.transitions import Event

Act = Callable[[Any], Any]
NAMES = ("Probe", "Second", "Odd", "Plain")


class Probe:
    """The hook `probe`. `acts`: what a method answers, by its name; `calls`: its arguments."""

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}
        self.calls: list[tuple[str, Any]] = []

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        answer: GroupTerms = self._do("prepare", terms, terms)
        return answer

    def on_placed(self, event: LifeEvent) -> EndOfJob | None:
        answer: EndOfJob | None = self._do("on_placed", event, None)
        return answer

    def on_started(self, event: LifeEvent) -> EndOfJob | None:
        answer: EndOfJob | None = self._do("on_started", event, None)
        return answer

    def on_end(self, end: AttemptEnd) -> Event:
        answer: Event = self._do("on_end", end, end.event)
        return answer

    def _do(self, method: str, argument: Any, default: Any) -> Any:
        self.calls.append((method, argument))
        return self.acts[method](argument) if method in self.acts else default

    def calls_of(self, method: str) -> list[Any]:
        """Return the arguments of the method's calls, in order."""
        return [argument for name, argument in self.calls if name == method]


class Second(Probe):
    """The hook `second`: another kind that a test controls."""


class Odd:
    """The hook `odd`, whose attributes fail when they are read."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        return end.event

    @property
    def on_placed(self) -> Any:
        raise RuntimeError("it was read")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("it was read")


class Plain:
    """The hook `plain`: of another package, without any of the optional methods."""

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return terms

    def on_end(self, end: AttemptEnd) -> Event:
        return end.event


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    """All of them are installed; the instance of `probe` that this process uses."""
    info = folder / "hook_probe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hook-probe\nVersion: 1.0\n")
    lines = "".join(f"{name.lower()} = {__name__}:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[cellrun.hooks]\n{lines}")
    monkeypatch.syspath_prepend(str(folder))
    plugins.forget()
    yield plugins.get(plugins.Kind.HOOK, "probe")
    monkeypatch.undo()
    plugins.forget()


def waiting(signal: Signal, answer: Any = None) -> Act:
    """An act that does not return before the signal."""

    def act(argument: Any) -> Any:
        signal.wait()
        return argument if answer is None else answer

    return act


def raising(argument: Any) -> Any:
    """An act that fails."""
    raise RuntimeError("no luck")
