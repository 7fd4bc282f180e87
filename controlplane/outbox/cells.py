"""Send orders to cells, sealed with each cell's key, in messages of at most 64 KiB."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controlplane.contract.messages.orders import (
    MAX_ORDER_BYTES,
    GroupSpec,
    Orders,
    RunAttempt,
    StopAttempt,
)
from controlplane.contract.wire import broker, envelope, keys, queues
from controlplane.contract.wire.sealing import NONCE_BYTES
from controlplane.domain.cells.keys import CellAddress
from controlplane.outbox import transport

# An upper estimate of a run or stop order on the wire; specs are measured.
_ORDER_BYTES = 120


def send(messages: Iterable[tuple[CellAddress, dict[str, Any]]]) -> None:
    """Send each body to its cell, all in one pipeline. They are lost if the broker is down."""
    sealed = []
    for address, body in messages:
        is_sealed = address.version >= envelope.SEALED_SINCE
        text = envelope.seal(
            keys.mac_key(address.key, keys.TO_CELL),
            cell=address.name,
            incarnation=address.incarnation,
            seq=0,
            body=body,
            payload_seal=_draw_seal(address.key) if is_sealed else None,
            version=min(address.version, envelope.VERSION),
        )
        queue = queues.cell_queue(address.name, address.incarnation)
        sealed.append((queue, broker.task_message(queue, queues.ORDERS_TASK, [text])))
    transport.push(sealed)


def _draw_seal(key: bytes) -> envelope.Seal:
    return envelope.Seal(keys.mac_key(key, keys.SEAL_ORDERS), os.urandom(NONCE_BYTES))


def split_orders(
    runs: Sequence[RunAttempt], stops: Sequence[StopAttempt], specs: Mapping[int, GroupSpec]
) -> Iterator[Orders]:
    """Yield the orders for one cell in messages of bounded size, with the specs of their runs.

    Omit runs without a spec: their group is gone or unreadable.
    """
    batch = _PendingEnvelope()
    for stop in stops:
        if not batch.has_room(_ORDER_BYTES):
            yield batch.take()
        batch.add_stop(stop)
    for run in runs:
        spec = specs.get(run.spec_id)
        if spec is None:
            continue
        if not batch.has_room(batch.cost_of(spec)):
            yield batch.take()
        batch.add_run(run, spec)
    if not batch.is_empty:
        yield batch.take()


class _PendingEnvelope:
    """Orders that are collected for the next message."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._specs: dict[int, GroupSpec] = {}
        self._runs: list[RunAttempt] = []
        self._stops: list[StopAttempt] = []
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._runs and not self._stops

    def has_room(self, cost: int) -> bool:
        return self.is_empty or self._bytes + cost <= MAX_ORDER_BYTES

    def cost_of(self, spec: GroupSpec) -> int:
        return _ORDER_BYTES + (0 if spec.id in self._specs else spec_bytes(spec))

    def add_stop(self, stop: StopAttempt) -> None:
        self._bytes += _ORDER_BYTES
        self._stops.append(stop)

    def add_run(self, run: RunAttempt, spec: GroupSpec) -> None:
        self._bytes += self.cost_of(spec)
        self._specs[spec.id] = spec
        self._runs.append(run)

    def take(self) -> Orders:
        orders = Orders(tuple(self._specs.values()), tuple(self._runs), tuple(self._stops))
        self._clear()
        return orders


def spec_bytes(spec: GroupSpec) -> int:
    """Return the approximate size of a spec on the wire: its free texts and a margin."""
    texts = sum(len(text) for text in spec.command)
    variables = sum(len(name) + len(value) + 8 for name, value in spec.env.items())
    links = sum(len(item.path) + len(item.url) + 100 for item in spec.inputs)
    return 600 + 2 * (texts + variables) + links
