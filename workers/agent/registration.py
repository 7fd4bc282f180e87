"""The resources and task types that a cell offers and accepts orders for."""

from collections.abc import Iterable

from controlplane.contract.messages.reports import HeldAttempt, Register
from controlplane.contract.wire import envelope
from workers.cell_attempt import CellAttempt
from workers.config import CellConfig

TASK_TYPES = {
    "docker": ("container",),
    "process": ("process",),
    "memory": ("container", "process"),
}
VERSIONS = {"contract": str(envelope.VERSION)}


def offered_types(config: CellConfig) -> tuple[str, ...]:
    """Return the task types of the driver and the runners; the memory driver has no runners."""
    runners = config.runners if config.driver != "memory" else ()
    return (*TASK_TYPES[config.driver], *runners)


def make_register(config: CellConfig, running: Iterable[CellAttempt]) -> Register:
    """Return the Register of a cell with these running attempts."""
    return Register(
        capacity=config.capacity,
        labels=config.labels,
        tags=config.tags,
        pool=config.pool,
        drivers=(config.driver,),
        task_types=offered_types(config),
        versions=VERSIONS,
        inventory=tuple(HeldAttempt(record.uid, record.state) for record in running),
    )
