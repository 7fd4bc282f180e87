"""What a scene is, and the play of many scenes at once, each in a thread."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import psycopg

from cellrun.errors import ApiError, Unreachable

if TYPE_CHECKING:
    from tests.e2e.entries.live import LiveStack

PAUSE_SECONDS = 0.5
"""Between two checks of a scene: each costs web a request."""
LONGEST_PAUSE_SECONDS = 3.0
AT_ONCE = 14
"""More scenes at once would check so rarely that they miss what lasts only seconds."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A condition that a scene waits for."""

    what: str
    holds: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom of an entry by its place in the entry. `section`: `Reason` or `Alert`."""

    section: str
    code: str
    number: int = 0


def reason(code: str, number: int = 0) -> Symptom:
    return Symptom("Reason", code, number)


def alert(code: str, number: int = 0) -> Symptom:
    return Symptom("Alert", code, number)


Steps = Generator[Sight, None, None]
Play = Callable[["LiveStack"], Steps]


@dataclass(frozen=True, slots=True)
class Scene:
    """Provokes symptoms, then applies their remedies, and ends when all is well.

    `steady`: pools in which a simulated cell runs from the start; `later`: pools in which one
    starts after all scenes with one have asked for it. `own`: cells that the scene starts itself,
    with their pools.
    """

    play: Play
    shows: tuple[Symptom, ...]
    steady: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    own: Mapping[str, str] = field(default_factory=dict)
    needs_engine: bool = False

    @property
    def name(self) -> str:
        return self.play.__name__


@dataclass
class Cast:
    """The scenes of one play."""

    scenes: list[Scene] = field(default_factory=list)

    def scene(
        self,
        *shows: Symptom,
        steady: Sequence[str] = (),
        later: Sequence[str] = (),
        own: Mapping[str, str] | None = None,
        needs_engine: bool = False,
    ) -> Callable[[Play], Play]:
        """Add the decorated function."""

        def add(play: Play) -> Play:
            self.scenes.append(
                Scene(play, shows, tuple(steady), tuple(later), own or {}, needs_engine)
            )
            return play

        return add


class NotSeen(AssertionError):
    """A sight did not come in time."""


def play(it: "LiveStack", scenes: Sequence[Scene], *, seconds: float) -> dict[str, Exception]:
    """Play the scenes, several at once; return the error of each that failed, by its name.

    `seconds`: how long each waits for one sight. Scenes that wait for one another come first.
    """
    in_order = sorted(scenes, key=lambda scene: not scene.later)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        tries = {scene.name: threads.submit(_play_one, it, scene, seconds) for scene in in_order}
    errors = {name: done.exception() for name, done in tries.items()}
    return {name: error for name, error in errors.items() if isinstance(error, Exception)}


def _play_one(it: "LiveStack", scene: Scene, seconds: float) -> None:
    with closing(scene.play(it)) as steps:
        for sight in steps:
            began = time.monotonic()
            give_up = began + seconds
            while not _holds(sight):
                spent = time.monotonic() - began
                if time.monotonic() > give_up:
                    raise NotSeen(f"still not so: {sight.what}")
                # On a machine under load, checks must not slow down what they check.
                time.sleep(min(max(PAUSE_SECONDS, 2 * spent), LONGEST_PAUSE_SECONDS))
                began = time.monotonic()


def _holds(sight: Sight) -> bool:
    """Return whether it holds; not while an outage hides it."""
    try:
        return sight.holds()
    except (psycopg.OperationalError, Unreachable):
        return False
    except ApiError as error:
        if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return False
