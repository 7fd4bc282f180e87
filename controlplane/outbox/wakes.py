"""Waking a tick before its time: directly after commit, coalesced, and harmless when lost."""

from controlplane.contract.wire import broker
from controlplane.outbox import transport

# A wake that was sent covers all that follow until the tick takes it, or this long if it was lost.
_COVER_SECONDS = 1.0


def wake_placement() -> None:
    """Something may be placed now."""
    _wake("placement")


def wake_convergence() -> None:
    """Something has to be ended now."""
    _wake("convergence")


def wake_callbacks() -> None:
    """Some callback is due now."""
    _wake("callbacks")


def wake_hooks() -> None:
    """Some hook is to be called now."""
    _wake("hooks", queue="callbacks")


def wake_retention() -> None:
    """More is to be deleted than there was time for: in its turn, between two other ticks."""
    _wake("retention", queue="convergence")


def take_wake(tick: str) -> None:
    """The tick begins: a wake from now on is a new one."""
    transport.unclaim(f"wake:{tick}")


def _wake(tick: str, *, queue: str = "") -> None:
    if transport.claim(f"wake:{tick}", _COVER_SECONDS):
        message = broker.task_message(queue or tick, f"controlplane.ticks.{tick}", [True])
        transport.push([(queue or tick, message)])
