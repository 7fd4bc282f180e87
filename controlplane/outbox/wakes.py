"""Wake ticks before their time: directly after a commit, coalesced, and harmless when lost."""

from controlplane.contract.wire import broker
from controlplane.outbox import transport

# A sent wake covers all later ones until the tick takes it, or for this time if it was lost.
_COVER_SECONDS = 1.0


def wake_placement() -> None:
    """Wake the placement tick: some task may be placeable."""
    _wake("placement")


def wake_convergence() -> None:
    """Wake the convergence tick: some job or task has to be ended."""
    _wake("convergence")


def wake_callbacks() -> None:
    """Wake the callbacks tick: some callback is due."""
    _wake("callbacks")


def wake_hooks() -> None:
    """Wake the hooks tick: some call is due."""
    _wake("hooks", queue="callbacks")


def wake_retention() -> None:
    """Wake the retention tick, which continues a deletion between two other ticks."""
    _wake("retention", queue="convergence")


def take_wake(tick: str) -> None:
    """Record that the tick begins, so that a later wake is sent again."""
    transport.unclaim(f"wake:{tick}")


def _wake(tick: str, *, queue: str = "") -> None:
    if transport.claim(f"wake:{tick}", _COVER_SECONDS):
        message = broker.task_message(queue or tick, f"controlplane.ticks.{tick}", [True])
        transport.push([(queue or tick, message)])
