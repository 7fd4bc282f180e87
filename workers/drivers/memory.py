"""Simulated attempts without processes, for scale tests and simulations: a table and a heap.

The driver runs nothing; the command of an attempt is a script of its course:

    noop                 end at once with exit status 0
    sleep SECONDS        run for this time, then continue with the rest of the command
    build SECONDS        stay BUILDING for this time (only at the beginning)
    exit CODE            end with this status
    fail-first N         exit 1 in attempts numbered N and below, 0 in later ones
    result TEXT          write this text to the result file
    deaf                 ignore the stop signal: only the end of the grace period stops it
    oom                  end as killed for memory
    need-memory MIB      end as killed for memory if the task requests less; else continue
    vanish               end as if the container vanished
    fail-system          fail with kind SYSTEM before the start

Words can be combined: `build 1 sleep 5 exit 3`; `exit 0` follows the last one. An attempt that was
stopped while it was building, or has `fail-system`, is reported as never created. Every health
check passes at once, nothing is ever idle, and ports are not published.
"""

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

from controlplane.contract.messages.reports import COMMAND, head_of_result
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.events import (
    BuildingEvent,
    EndedEvent,
    FoundContainer,
    Launch,
    Listener,
    Permit,
    StartedEvent,
)
from workers.attempt.outcome import (
    ENGINE,
    EXIT,
    KILLED_OUTSIDE,
    LEASE_OVER,
    LIFETIME,
    NOT_FOUND,
    SIGKILLED,
    STOPPED,
    TIMEOUT,
    VANISHED,
    Exit,
    judge_exit,
)
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused
from workers.exec.scripted import ScriptedProgram

TERMINATED = 143  # 128 + SIGTERM
INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Script:
    """The parsed command; `end` is the EndedEvent to report, except for its time."""

    build_seconds: float
    run_seconds: float
    end: EndedEvent
    is_deaf: bool = False


@dataclass(slots=True)
class FakeContainer:
    """One simulated container. Clock times; `ends_at` only decreases."""

    launch: Launch
    script: Script
    starts_at: float
    ends_at: float
    end: EndedEvent


class MemoryEngine:
    """The containers, which outlive the driver: pass it to a new driver to model a killed cell.

    `starts` counts the starts of each uid: an invariant requires at most one.
    """

    def __init__(self, *, counts_starts: bool = True) -> None:
        """Create an engine; `counts_starts` keeps every uid, so long-lived cells do not use it."""
        self.lives: dict[str, FakeContainer] = {}
        self.starts: Counter[str] = Counter()
        self.counts_starts = counts_starts
        self.on_change: Callable[[str], None] = lambda uid: None

    def kill_outside(self, uid: str, now: float) -> None:
        """Kill the container with SIGKILL, from outside."""
        self._cut_short(uid, now, SIGKILLED, FailureKind.OUTSIDE, KILLED_OUTSIDE)

    def lose(self, uid: str, now: float) -> None:
        """Remove the container, from outside."""
        self._cut_short(uid, now, None, FailureKind.OUTSIDE, VANISHED)
        self.lives.pop(uid, None)

    def running(self, now: float) -> int:
        """Return how many containers run."""
        return sum(life.starts_at <= now < life.ends_at for life in self.lives.values())

    def stop_outside(self, uid: str, now: float) -> None:
        """Send the program a stop signal, from outside."""
        life = self.lives.get(uid)
        if life is not None and not life.script.is_deaf:
            self._cut_short(uid, now, TERMINATED, None, EXIT)

    def _cut_short(
        self, uid: str, now: float, code: int | None, kind: FailureKind | None, reason: str
    ) -> None:
        life = self.lives.get(uid)
        if life is not None and now < life.ends_at:
            life.ends_at = now
            life.end = replace(_ended(uid, code), failure_kind=kind, reason=reason)
            self.on_change(uid)


class TimerHeap:
    """The times of pending events: one heap and one lock for all drivers that share it."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._due: list[tuple[float, int, Callable[[str, float], None], str]] = []
        self._numbers = itertools.count()

    def plan(self, at: float, deliver: Callable[[str, float], None], uid: str) -> None:
        """Call `deliver` for `uid` at `at`. The caller holds `changed`."""
        heapq.heappush(self._due, (at, next(self._numbers), deliver, uid))
        self.changed.notify()

    def advance(self, now: float) -> int:
        """Report all events due at `now`; return their number."""
        count = 0
        with self.changed:
            while self._due and self._due[0][0] <= now:
                at, _, deliver, uid = heapq.heappop(self._due)
                deliver(uid, at)
                count += 1
        return count

    def next_due(self) -> float | None:
        """Return the time of the next event."""
        with self.changed:
            return self._due[0][0] if self._due else None


@dataclass(slots=True)
class _Charge:
    """The events already reported of an attempt in charge."""

    life: FakeContainer | None
    is_started: bool = False
    is_ended: bool = False
    is_refused: bool = False


class MemoryDriver:
    """See workers.drivers.base. Events come from `advance`, or from a timer thread."""

    name = "memory"

    def __init__(
        self,
        emit: Listener,
        *,
        clock: Callable[[], float],
        engine: MemoryEngine | None = None,
        moments: TimerHeap | None = None,
        threaded: bool = False,
    ) -> None:
        """Create a driver; `clock` returns wall seconds.

        `threaded`: events are delivered without calls of `advance`. Drivers with the same `moments`
        are advanced together.
        """
        self.engine = engine or MemoryEngine(counts_starts=False)
        self.engine.on_change = self._notify
        self._emit = emit
        self._clock = clock
        self._charges: dict[str, _Charge] = {}
        self._moments = moments or TimerHeap()
        self._changed = self._moments.changed
        self._is_closed = False
        if threaded:
            threading.Thread(target=self._serve, name="memory-driver", daemon=True).start()

    def start(self, launch: Launch) -> None:
        """Begin the attempt, or take over the container of the same uid."""
        with self._changed:
            if launch.uid in self._charges:
                return
            life = self.engine.lives.get(launch.uid)
            is_refused = life is None and launch.permit() is not Permit.YES
            if life is None and not is_refused:
                life = self._begin(launch)
            self._take_charge(launch.uid, life)
            self._charges[launch.uid].is_refused = is_refused

    def adopt(self, launch: Launch) -> None:
        """Take charge again; a uid without a container has vanished."""
        with self._changed:
            if launch.uid not in self._charges:
                self._take_charge(launch.uid, self.engine.lives.get(launch.uid))

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """End it now; a deaf one when the grace period is over."""
        with self._changed:
            charge = self._charges.get(uid)
            if charge is None or charge.life is None or charge.is_ended:
                return
            life, now = charge.life, self._clock()
            if now < life.starts_at:
                message = "stopped before it started"
                end = EndedEvent(uid, now, reason=STOPPED, message=message, never_created=True)
                life.starts_at = INFINITE
                self.engine.starts.pop(uid, None)
            elif force or life.script.is_deaf:
                now += 0.0 if force else max(grace_seconds, 0.0)
                end = replace(_ended(uid, SIGKILLED, STOPPED), failure_kind=None, reason=STOPPED)
            else:
                end = _ended(uid, TERMINATED, STOPPED)
            if now < life.ends_at:
                life.ends_at, life.end = now, end
                self._plan(now, uid)

    def execute(self, command: ExecCommand) -> ExecProgram:
        """Start a scripted program; see workers.exec.scripted."""
        command.check()
        with self._changed:
            charge = self._charges.get(command.attempt)
            life = None if charge is None or not charge.is_started else charge.life
        if life is None or self._clock() >= life.ends_at:
            raise ExecRefused("the attempt does not run")
        return ScriptedProgram(command, lambda: self._clock() >= life.ends_at)

    def find(self) -> Iterable[FoundContainer]:
        """Return all containers that are not removed."""
        now = self._clock()
        with self._changed:
            return [
                FoundContainer(uid, now < life.ends_at) for uid, life in self.engine.lives.items()
            ]

    def remove(self, uid: str) -> None:
        """Forget the container; stop it first if it runs."""
        with self._changed:
            charge = self._charges.get(uid)
            if charge is not None and not charge.is_ended:
                self.stop(uid, grace_seconds=0.0, force=True)
                self._deliver(uid, self._clock())
            self._charges.pop(uid, None)
            life = self.engine.lives.pop(uid, None)
            if life is not None:
                life.ends_at = min(life.ends_at, self._clock())

    def close(self) -> None:
        """Report no more events; the containers continue in the engine."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def advance(self, now: float) -> int:
        """Report all events due at `now`; return their number."""
        return self._moments.advance(now)

    def next_due(self) -> float | None:
        """Return the time of the next event."""
        return self._moments.next_due()

    def _serve(self) -> None:
        while not self._is_closed:
            self.advance(self._clock())
            with self._changed:
                due = self.next_due()
                if self._is_closed or (due is not None and due <= self._clock()):
                    continue
                self._changed.wait(None if due is None else due - self._clock())

    def _begin(self, launch: Launch) -> FakeContainer:
        now = self._clock()
        script = read_command(launch)
        starts_at = now + script.build_seconds if script.run_seconds >= 0 else INFINITE
        ends_at = now + script.build_seconds + max(script.run_seconds, 0.0)
        end = script.end
        limits = ((launch.spec.timeout_seconds, TIMEOUT), (launch.spec.lifetime_seconds, LIFETIME))
        given = [(limit, reason) for limit, reason in limits if limit is not None]
        limit, reason = min(given, key=itemgetter(0), default=(INFINITE, TIMEOUT))
        if starts_at + limit < ends_at:
            grace = launch.spec.stop_grace_seconds if script.is_deaf else 0.0
            code = SIGKILLED if script.is_deaf else TERMINATED
            ends_at = min(ends_at, starts_at + limit + grace)
            end = _ended(launch.uid, code, reason)
        life = FakeContainer(launch, script, starts_at, ends_at, end)
        self.engine.lives[launch.uid] = life
        if starts_at < INFINITE and self.engine.counts_starts:
            self.engine.starts[launch.uid] += 1
        return life

    def _take_charge(self, uid: str, life: FakeContainer | None) -> None:
        self._charges[uid] = _Charge(life)
        now = self._clock()
        if life is None:
            self._plan(now, uid)
            return
        if life.script.build_seconds:
            self._plan(now, uid)
        if life.starts_at < life.ends_at:
            self._plan(max(life.starts_at, now), uid)
        self._plan(max(life.ends_at, now), uid)

    def _plan(self, at: float, uid: str) -> None:
        self._moments.plan(at, self._deliver, uid)

    def _notify(self, uid: str) -> None:
        with self._changed:
            self._plan(self._clock(), uid)

    def _deliver(self, uid: str, now: float) -> None:
        """Report the events of `uid` that are due at `now` and not reported yet."""
        charge = self._charges.get(uid)
        if charge is None or charge.is_ended or self._is_closed:
            return
        life = charge.life
        if life is None:
            charge.is_ended = True
            self._emit(_refused(uid, now) if charge.is_refused else _vanished(uid, now))
            return
        if not charge.is_started and life.starts_at <= now:
            charge.is_started = True
            self._emit(StartedEvent(uid, life.starts_at))
        if life.ends_at <= now:
            charge.is_ended = True
            started_at = life.starts_at if charge.is_started else None
            self._emit(replace(life.end, at=life.ends_at, started_at=started_at))
        elif not charge.is_started:
            self._emit(BuildingEvent(uid, Phase.PREPARING))


def _ended(uid: str, code: int | None, stopped_for: str | None = None) -> EndedEvent:
    if code is None:
        return EndedEvent(uid, 0.0)
    verdict = judge_exit(Exit(code, stopped_for=stopped_for))
    return EndedEvent(uid, 0.0, code, verdict.kind, verdict.reason, verdict.message)


def _vanished(uid: str, now: float) -> EndedEvent:
    message = "its container is gone or was never created, and will not be created"
    return EndedEvent(uid, now, None, FailureKind.OUTSIDE, VANISHED, message)


def _refused(uid: str, now: float) -> EndedEvent:
    message = "the lease of its cell had expired, or was about to, before the start"
    return EndedEvent(uid, now, None, FailureKind.OUTSIDE, LEASE_OVER, message, never_created=True)


def read_command(launch: Launch) -> Script:
    """Parse the command of `launch`; an invalid one ends with exit status 127."""
    builder = _ScriptBuilder(launch)
    words = iter(launch.spec.command)
    try:
        for word in words:
            _WORDS[word](builder, words)
    except (KeyError, ValueError, StopIteration):
        message = f"the memory driver does not know the command {list(launch.spec.command)!r}"
        end = EndedEvent(launch.uid, 0.0, NOT_FOUND, FailureKind.USER, COMMAND, message)
        return Script(0.0, -1.0, end)
    return builder.script()


@dataclass(slots=True)
class _ScriptBuilder:
    launch: Launch
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    is_deaf: bool = False
    result: str | None = None
    end: EndedEvent | None = None
    never_starts: bool = False

    def script(self) -> Script:
        end = self.end or _ended(self.launch.uid, 0)
        if end.exit_code == 0 and self.result is not None and self.launch.spec.result_file:
            head, is_cut = head_of_result(self.result.encode("utf-8", "replace"))
            end = replace(end, result=head, result_truncated=is_cut)
        run_seconds = -1.0 if self.never_starts else self.run_seconds
        return Script(self.build_seconds, run_seconds, end, self.is_deaf)

    def finish(self, end: EndedEvent) -> None:
        self.end = self.end or end


def _sleep(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.run_seconds += _seconds(next(words))


def _build(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.build_seconds += _seconds(next(words))


def _exit(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.finish(_ended(builder.launch.uid, int(next(words))))


def _fail_first(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    fails = builder.launch.run.number <= int(next(words))
    builder.finish(_ended(builder.launch.uid, 1 if fails else 0))


def _result(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.result = next(words)


def _deaf(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.is_deaf = True


def _noop(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    builder.finish(_ended(builder.launch.uid, 0))


def _oom(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    verdict = judge_exit(Exit(SIGKILLED, out_of_memory=True))
    end = EndedEvent(
        builder.launch.uid, 0.0, SIGKILLED, verdict.kind, verdict.reason, verdict.message
    )
    builder.finish(end)


def _need_memory(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    if builder.launch.spec.resources.get("memory_mib", 0) < int(next(words)):
        _oom(builder, words)


def _vanish(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    uid, message = builder.launch.uid, "its container is gone"
    builder.finish(EndedEvent(uid, 0.0, None, FailureKind.OUTSIDE, VANISHED, message))


def _fail_system(builder: _ScriptBuilder, words: Iterator[str]) -> None:
    uid, message = builder.launch.uid, "the command asks for a failure of the engine"
    builder.never_starts = True
    end = EndedEvent(uid, 0.0, None, FailureKind.SYSTEM, ENGINE, message, never_created=True)
    builder.finish(end)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < INFINITE:
        raise ValueError(text)
    return seconds


_WORDS: dict[str, Callable[[_ScriptBuilder, Iterator[str]], None]] = {
    "noop": _noop,
    "sleep": _sleep,
    "build": _build,
    "exit": _exit,
    "fail-first": _fail_first,
    "result": _result,
    "deaf": _deaf,
    "oom": _oom,
    "need-memory": _need_memory,
    "vanish": _vanish,
    "fail-system": _fail_system,
}
