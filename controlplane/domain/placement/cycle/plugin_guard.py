"""Isolation of plugins, so that a faulty plugin does not end a pass.

A validator that fails defers the request; a sequencer or selector that fails, or returns invalid
values, is replaced by the default for the rest of the pass. Each fault is recorded once.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.placement.cycle.pass_state import Plugins
from controlplane.domain.placement.model.interfaces import (
    CellOffer,
    Queue,
    Request,
    Selector,
    Sequencer,
    Turn,
    ValidationFailure,
    ValidationResult,
    Validator,
    Vector,
)
from controlplane.domain.placement.plugins.selectors.dispersed import DispersedSelector
from controlplane.domain.placement.plugins.sequencers.by_job import Fifo

PLUGIN_FAILED = "plugin_failed"


@dataclass(slots=True)
class Faults:
    """The first error of each plugin ("validator x") in a pass."""

    found: dict[str, str] = field(default_factory=dict)

    def note(self, plugin: str, error: str) -> None:
        """Record the error if it is the first of the plugin."""
        self.found.setdefault(plugin, error[:500])


def guard(
    faults: Faults,
    *,
    sequencer: tuple[str, Sequencer],
    selector: tuple[str, Selector],
    validators: dict[str, Validator],
) -> Plugins:
    """Return the plugins, by name, wrapped so that their errors are recorded in `faults`."""
    return Plugins(
        sequencer=_GuardedSequencer(faults, *sequencer),
        selector=_GuardedSelector(faults, *selector),
        validators=tuple(_Validator(faults, name, one) for name, one in validators.items()),
    )


class _Validator:
    def __init__(self, faults: Faults, name: str, plugin: Validator) -> None:
        self._faults, self._name, self._plugin = faults, name, plugin

    def check(self, request: Request) -> ValidationResult:
        try:
            verdict = self._plugin.check(request)
            if (
                type(verdict) is ValidationResult
                and verdict.admitted is request.tasks
                and verdict.violations == ()
            ):
                return verdict
            admitted = min(max(int(verdict.admitted), 0), request.tasks)
            violations = tuple(verdict.violations)
            if admitted < request.tasks or violations:
                _check_violations(violations)
            return ValidationResult(admitted, violations)
        except Exception as error:
            self._faults.note(f"validator {self._name}", repr(error))
            text = f"validator {self._name} failed: an operator must fix or remove it"
            return ValidationResult(
                0, (ValidationFailure(PLUGIN_FAILED, text, {"plugin": self._name}),)
            )


def _check_violations(violations: tuple[ValidationFailure, ...]) -> None:
    """Check that violations are present and can be stored. Raise ValueError or TypeError."""
    if not violations:
        raise ValueError("tasks were deferred without a violation")
    for item in violations:
        if not (isinstance(item, ValidationFailure) and isinstance(item.text, str)):
            raise TypeError("a violation must be a ValidationFailure with a text")
        if "\\u0000" in json.dumps([item.code, item.text, dict(item.figures)], allow_nan=False):
            raise ValueError("a violation must not contain a NUL character")


class _GuardedSequencer:
    """A sequencer that falls back to FIFO after its first fault."""

    def __init__(self, faults: Faults, name: str, plugin: Sequencer) -> None:
        self._faults, self._name, self._plugin = faults, name, plugin
        self.uses_shares = bool(getattr(plugin, "uses_shares", False))

    def turns(self, queue: Queue) -> Iterator[Turn]:
        idle = 0
        try:
            for turn in self._plugin.turns(queue):
                rows = self._checked(queue, turn)
                before = int(queue.left[rows].sum())
                if not before and not queue.left.any():
                    return
                yield Turn(rows, int(turn.tasks))
                idle = idle + 1 if int(queue.left[rows].sum()) == before else 0
                if idle > len(queue.left):
                    raise ValueError("too many turns placed no task")
            if queue.left.any():
                raise ValueError("some waiting rows got no turn")
        except Exception as error:
            self._faults.note(f"sequencer {self._name}", repr(error))
            yield from Fifo().turns(queue)

    @staticmethod
    def _checked(queue: Queue, turn: Turn) -> Vector:
        rows = np.asarray(turn.rows, dtype=np.int64)
        if rows.ndim != 1 or not len(rows) or rows.min() < 0:
            raise ValueError("a turn must have rows, each once")
        if len(rows) == 1:
            return rows
        is_rising = bool((rows[1:] > rows[:-1]).all())
        if not is_rising and len(np.unique(rows)) < len(rows):
            raise ValueError("a turn must have rows, each once")
        if (queue.shape[rows] != queue.shape[rows[0]]).any():
            raise ValueError("the rows of a turn must be of one shape")
        return rows


class _GuardedSelector:
    """A selector that falls back to `dispersed` for invalid choices."""

    def __init__(self, faults: Faults, name: str, plugin: Selector) -> None:
        self._faults, self._name, self._plugin = faults, name, plugin
        self.keeps_place = bool(getattr(plugin, "keeps_place", False))

    def select(self, offer: CellOffer, count: int) -> Vector:
        try:
            given = np.asarray(self._plugin.select(_to_read(offer), count), dtype=np.int64)
            if (
                given.shape != offer.room.shape
                or (given < 0).any()
                or (given > offer.room).any()
                or int(given.sum()) != count
            ):
                raise ValueError(f"returned {int(given.sum())} places for {count} tasks")
            return given
        except Exception as error:
            self._faults.note(f"selector {self._name}", repr(error))
            self._plugin = DispersedSelector()
            return self._plugin.select(offer, count)


def _to_read(offer: CellOffer) -> CellOffer:
    """Return a read-only view, so that plugins cannot change the matrix."""
    return CellOffer(
        _view(offer.capacity),
        _view(offer.used),
        _view(offer.request),
        _view(offer.room),
        _view(offer.sizes),
        offer.start,
    )


def _view(column: NDArray[np.int64]) -> NDArray[np.int64]:
    view = column.view()
    view.flags.writeable = False
    return view
