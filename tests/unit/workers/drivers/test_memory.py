"""The memory driver on virtual time, with deaths of the cell in between."""

import pytest

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.states import FailureKind
from workers.attempt.events import BuildingEvent, DriverEvent, EndedEvent, Launch, StartedEvent
from workers.attempt.outcome import OUT_OF_MEMORY, STOPPED, TIMEOUT, VANISHED
from workers.drivers.memory import MemoryDriver, MemoryEngine


class World:
    """Virtual time, one engine, and the cell process of the moment."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.engine = MemoryEngine()
        self.begin_again()

    def begin_again(self) -> None:
        self.events: list[DriverEvent] = []
        self.driver = MemoryDriver(self.events.append, clock=lambda: self.now, engine=self.engine)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.driver.advance(self.now)

    def kinds(self) -> list[type[DriverEvent]]:
        return [type(event) for event in self.events]

    def ended(self) -> EndedEvent:
        (ended,) = (event for event in self.events if isinstance(event, EndedEvent))
        return ended


@pytest.fixture
def world() -> World:
    return World()


def launch(*command: str, uid: str = "a", number: int = 1, **spec: object) -> Launch:
    group = GroupSpec(1, 1, "job", "main", 1, command=command, **spec)  # type: ignore[arg-type]
    return Launch(RunAttempt(uid, 1, 1, 0, number, 0.0), group)


def test_events_are_not_emitted_before_their_time(world: World) -> None:
    world.driver.start(launch("build", "2", "sleep", "3", "exit", "4"))
    assert world.events == []
    world.advance(0)
    assert world.kinds() == [BuildingEvent]
    world.advance(2)
    assert world.kinds() == [BuildingEvent, StartedEvent]
    assert world.driver.next_due() == 1005.0
    world.advance(3)
    assert world.ended() == EndedEvent(
        "a", 1005.0, 4, None, "exit", "exit status 4", started_at=1002.0
    )


def test_noop_is_started_and_ended_in_one_moment(world: World) -> None:
    world.driver.start(launch("noop"))
    assert world.driver.advance(world.now) == 1
    assert world.kinds() == [StartedEvent, EndedEvent]
    assert world.ended().exit_code == 0


def test_fail_first_fails_in_its_first_attempts(world: World) -> None:
    for number in (1, 2, 3):
        world.driver.start(launch("fail-first", "2", uid=str(number), number=number))
    world.advance(0)
    assert [e.exit_code for e in world.events if isinstance(e, EndedEvent)] == [1, 1, 0]


def test_attempt_continues_while_its_cell_is_down(world: World) -> None:
    world.driver.start(launch("sleep", "10", "exit", "3"))
    world.advance(1)
    world.driver.close()
    world.advance(20)
    world.begin_again()
    assert [found.running for found in world.driver.find()] == [False]
    world.driver.adopt(launch("sleep", "10", "exit", "3"))
    world.advance(0)
    assert world.kinds() == [StartedEvent, EndedEvent]
    assert (world.ended().exit_code, world.ended().at) == (3, 1010.0)
    assert world.engine.starts["a"] == 1


def test_order_of_a_dead_cell_process_is_not_started_again(world: World) -> None:
    world.driver.start(launch("sleep", "10"))
    world.begin_again()
    world.driver.start(launch("sleep", "10"))
    world.advance(10)
    assert world.engine.starts["a"] == 1
    assert world.ended().exit_code == 0


def test_stop_before_the_start_prevents_the_start(world: World) -> None:
    world.driver.start(launch("build", "5", "sleep", "5"))
    world.advance(1)
    world.driver.stop("a", grace_seconds=10, force=False)
    world.advance(0)
    assert world.kinds() == [BuildingEvent, EndedEvent]
    assert (world.ended().exit_code, world.ended().reason) == (None, STOPPED)


def test_attempt_ignoring_the_stop_is_killed_after_the_grace_period(world: World) -> None:
    world.driver.start(launch("deaf", "sleep", "100"))
    world.advance(1)
    world.driver.stop("a", grace_seconds=10, force=False)
    world.advance(9)
    assert world.kinds() == [StartedEvent]
    world.advance(1)
    assert (world.ended().exit_code, world.ended().at) == (137, 1011.0)
    assert (world.ended().failure_kind, world.ended().reason) == (None, STOPPED)


def test_timeout_counts_from_the_start(world: World) -> None:
    world.driver.start(launch("build", "5", "sleep", "100", timeout_seconds=7.0))
    world.advance(20)
    assert (world.ended().reason, world.ended().at) == (TIMEOUT, 1012.0)


@pytest.mark.parametrize(
    ("word", "kind", "reason", "code"),
    [
        ("oom", FailureKind.USER, OUT_OF_MEMORY, 137),
        ("vanish", FailureKind.OUTSIDE, VANISHED, None),
        ("fail-system", FailureKind.SYSTEM, "engine", None),
        ("gibberish", FailureKind.USER, "command", 127),
    ],
)
def test_failing_commands_map_to_kind_reason_and_exit_code(
    world: World, word: str, kind: FailureKind, reason: str, code: int | None
) -> None:
    world.driver.start(launch(word))
    world.advance(0)
    ended = world.ended()
    assert (ended.failure_kind, ended.reason, ended.exit_code) == (kind, reason, code)


def test_result_is_reported_only_with_a_result_file(world: World) -> None:
    world.driver.start(launch("result", "42"))
    world.driver.start(launch("result", "é" * 6000, uid="b", result_file="/out/result"))
    world.driver.start(launch("result", "x" + "é" * 6000, uid="c", result_file="/out/result"))
    world.advance(0)
    plain, cut, torn = (event for event in world.events if isinstance(event, EndedEvent))
    assert (plain.result, plain.result_truncated) == (None, False)
    assert (cut.result, cut.result_truncated) == ("é" * 5120, True)
    assert (torn.result, torn.result_truncated) == ("x" + "é" * 5119, True)


def test_removed_attempt_is_forgotten(world: World) -> None:
    world.driver.start(launch("noop"))
    world.advance(0)
    world.driver.remove("a")
    world.driver.remove("a")
    assert list(world.driver.find()) == []
