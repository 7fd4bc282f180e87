"""Orders to cells, sealed with each cell's key, at most 64 KiB a message."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from controlplane.contract import broker, envelope, keys, queues
from controlplane.contract.orders import (
    MAX_ORDER_BYTES,
    GroupSpec,
    Orders,
    RunAttempt,
    StopAttempt,
)
from controlplane.domain.cell_keys import CellAddress
from controlplane.outbox import transport

# What a run or stop order takes on the wire, generously; specs are measured.
_ORDER_BYTES = 120


def send(messages: Iterable[tuple[CellAddress, dict[str, Any]]]) -> bool:
    """Send each body to its cell, all in one pipeline. False if the broker could not be reached."""
    sealed = []
    for address, body in messages:
        text = envelope.seal(
            keys.mac_key(address.key, keys.TO_CELL),
            cell=address.name,
            incarnation=address.incarnation,
            seq=0,
            body=body,
        )
        queue = queues.cell_queue(address.name, address.incarnation)
        sealed.append((queue, broker.task_message(queue, queues.ORDERS_TASK, [text])))
    return transport.push(sealed)


def split_orders(
    runs: Sequence[RunAttempt], stops: Sequence[StopAttempt], specs: dict[int, GroupSpec]
) -> Iterator[Orders]:
    """The orders for one cell in messages of bounded size, each with the specs that its runs
    need.
    """
    yield from _stop_messages(stops)
    batch: list[RunAttempt] = []
    used: dict[int, GroupSpec] = {}
    size = 0
    for run in runs:
        if run.spec_id not in specs:
            continue
        cost = _ORDER_BYTES
        if run.spec_id not in used:
            cost += spec_bytes(specs[run.spec_id])
        if batch and size + cost > MAX_ORDER_BYTES:
            yield Orders(tuple(used.values()), tuple(batch))
            batch, used, size = [], {}, 0
            cost = _ORDER_BYTES + spec_bytes(specs[run.spec_id])
        batch.append(run)
        used[run.spec_id] = specs[run.spec_id]
        size += cost
    if batch:
        yield Orders(tuple(used.values()), tuple(batch))


def spec_bytes(spec: GroupSpec) -> int:
    """Roughly what a spec takes on the wire: its free texts, and a margin for the rest."""
    texts = sum(len(text) for text in spec.command)
    variables = sum(len(name) + len(value) + 8 for name, value in spec.env.items())
    links = sum(len(item.path) + len(item.url) + 100 for item in spec.inputs)
    return 600 + 2 * (texts + variables) + links


def _stop_messages(stops: Sequence[StopAttempt]) -> Iterator[Orders]:
    at_once = MAX_ORDER_BYTES // _ORDER_BYTES
    for start in range(0, len(stops), at_once):
        yield Orders(stops=tuple(stops[start : start + at_once]))
