"""Read raw messages: check shard and MAC; drop and count invalid messages.

An invalid message affects no other: no text makes `sort_messages` raise. A cell has a limited share
of a batch. Messages beyond it are dropped before they are decoded: cells send reports again until
they are acknowledged, and heartbeats and registers periodically.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import structlog

from controlplane.commands.attempts.reports import Acknowledgement, ReceivedReport
from controlplane.commands.cells.messages import Beat
from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.reports import (
    Goodbye,
    Heartbeat,
    Register,
    Reports,
    read_message,
)
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.envelope import VERSION, Envelope
from controlplane.contract.wire.queues import INBOX_QUEUES, inbox_queue
from controlplane.contract.wire.sealing import BadSeal
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.cells.probes import Probe
from controlplane.domain.cells.reports import ReportSender
from controlplane.queries.cells.keys import find_keys, find_probe

log = structlog.get_logger(__name__)

MAX_OF_A_CELL = 100
"""Messages of one cell in a batch. A cell flushes ten times a second: this is 10 s of a backlog."""

MAX_OF_A_KIND = 2
"""Registers and goodbyes of one cell in a batch, each a transaction; only the newest count."""

_HEARTBEAT = '{"type":"heartbeat"'
"""The beginning of the payload of a heartbeat, as `compact_json` writes it."""

COUNTED_CHARS = 64 * 1024
"""A message counts once for its cell, and once more for each part of this length."""

SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class RegistrationMessage:
    """A Register with its sender. `position`: its position among Registers and Goodbyes."""

    address: CellAddress
    register: Register
    seq: int
    is_supported: bool
    position: int


@dataclass(frozen=True, slots=True)
class GoodbyeMessage:
    """A Goodbye with its sender. `position`: its position among Registers and Goodbyes."""

    address: CellAddress
    goodbye: Goodbye
    seq: int
    position: int


@dataclass(slots=True)
class SortedBatch:
    """The messages of a batch by kind.

    `dropped`: number of dropped messages by reason. `counts`: number of messages with a valid MAC,
    by id and name of their cell; a long one counts as several. `rotated`: senders of the first
    message under the next key of their cell.
    """

    registrations: list[RegistrationMessage] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    goodbyes: list[GoodbyeMessage] = field(default_factory=list)
    reported: list[ReceivedReport] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    rotated: set[CellAddress] = field(default_factory=set)

    @property
    def arrivals_and_departures(self) -> list[RegistrationMessage | GoodbyeMessage]:
        """Return Registers and Goodbyes in the order of their arrival.

        A Goodbye raises the number with which the Register of a restored journal is compared.
        """
        return sorted([*self.registrations, *self.goodbyes], key=lambda item: item.position)

    @property
    def is_more_than_beats(self) -> bool:
        """Return whether the batch has messages other than heartbeats, which cannot wait."""
        others = (self.registrations, self.goodbyes, self.reported, self.acknowledgements)
        return any(others) or bool(self.probes or self.dropped)


class UnknownCell(MalformedMessage):
    """No cell with the name is enrolled."""


class WrongShard(MalformedMessage):
    """The message came through the queue of a shard other than its sender's."""


class OverLimit(MalformedMessage):
    """The sender has too many messages in the batch."""


_Checked = tuple[Envelope, CellAddress]
_Keys = Mapping[bytes, str]  # the valid keys of a cell, with their salts
T = TypeVar("T")


class Directory:
    """A cache of cell ids and keys by name; unknown names are loaded.

    Only heartbeats are verified with cached keys, which are compared again before the answer.
    """

    def __init__(
        self, find: Callable[[Iterable[str]], Mapping[str, tuple[int, _Keys]]] = find_keys
    ) -> None:
        """`find` returns the cell id and valid keys of each enrolled cell among the names."""
        self._find = find
        self._known: dict[str, tuple[int, _Keys, Sequence[bytes]]] = {}

    def learn(self, names: Iterable[str], *, again: Iterable[str] = ()) -> None:
        """Load the cells of unknown names, and those of the names in `again` in any case.

        Forget names without a valid key: a key may be revoked or renewed at any time.
        """
        needed = sorted({name for name in names if name not in self._known}.union(again))
        if not needed:
            return
        found = self._find(needed)
        for name in needed:
            self._known.pop(name, None)
        for name, (cell_id, valid) in found.items():
            self._remember(name, cell_id, valid)

    def check(self, message: Envelope) -> CellAddress:
        """Return the sender of an envelope. Raise UnknownCell, BadMac."""
        known = self._known.get(message.cell)
        if known is None:
            raise UnknownCell(f"cell {message.cell!r} is not enrolled")
        cell_id, valid, mac_keys = known
        key, salt = list(valid.items())[message.check(*mac_keys)]
        return CellAddress(cell_id, message.cell, message.incarnation, key, message.version, salt)

    def end_former_key(self, address: CellAddress) -> bool:
        """Forget the key before that of `address`, which has signed a message.

        Return whether there was one: then the message is the first under the next key of its cell.
        """
        _, valid, _ = self._known[address.name]
        if address.key == next(iter(valid)):
            return False
        self._remember(address.name, address.cell_id, {address.key: address.salt})
        return True

    def _remember(self, name: str, cell_id: int, valid: _Keys) -> None:
        mac_keys = [keys.mac_key(key, keys.TO_CONTROL) for key in valid]
        self._known[name] = (cell_id, valid, mac_keys)

    def forget(self) -> None:
        """Clear the cache, since keys may have changed."""
        self._known.clear()


def sort_messages(
    raw: Sequence[str], directory: Directory, queues: Sequence[str] | None = None
) -> SortedBatch:
    """Return the messages of a batch by kind. Drop and count invalid ones, with one log line.

    `queues`: the queue of each message, since a cell may use only its own shard; None if the
    messages did not come through the broker.
    """
    found, drops = SortedBatch(), _DropCounts()
    envelopes = []
    for place, text in enumerate(raw):
        try:
            probe = find_probe(text)
            if probe is not None:
                if queues is not None and queues[place] != INBOX_QUEUES[probe.shard]:
                    raise WrongShard(f"a probe of {INBOX_QUEUES[probe.shard]} in {queues[place]}")
                found.probes.append(probe)
                continue
            message = envelope.parse(text)
            if queues is not None and queues[place] != inbox_queue(message.cell):
                raise WrongShard(f"cell {message.cell!r} does not send through {queues[place]}")
            envelopes.append(message)
        except Exception as error:  # an invalid message affects no other
            drops.add(error, text)
    directory.learn(
        (message.cell for message in envelopes),
        again={message.cell for message in envelopes if not message.payload.startswith(_HEARTBEAT)},
    )
    checked = []
    for message in envelopes:
        try:
            address = directory.check(message)
        except Exception as error:
            drops.add(error, message.cell)
        else:
            checked.append((message, address))
            if directory.end_former_key(address):
                found.rotated.add(address)
            found.counts[address.cell_id, address.name] += _weight(message)
    for message, address in _within_limits(checked, found.counts, drops):
        try:
            _sort(message, address, found)
        except Exception as error:
            drops.add(error, message.cell)
    found.registrations = _newest(found.registrations, lambda item: item.address, drops)
    found.goodbyes = _newest(found.goodbyes, lambda item: item.address, drops)
    found.dropped = drops.counts
    drops.log()
    return found


def _weight(message: Envelope) -> int:
    """Return the number of messages as which it counts: a long one counts as several."""
    return 1 + len(message.payload) // COUNTED_CHARS


def _within_limits(
    checked: list[_Checked], counts: Mapping[tuple[int, str], int], drops: "_DropCounts"
) -> list[_Checked]:
    """Return each cell's oldest messages, up to MAX_OF_A_CELL, and its newest heartbeat.

    Long messages count as several, because the inbox decodes all that it keeps.
    """
    over = {cell_id for (cell_id, _), count in counts.items() if count > MAX_OF_A_CELL}
    if not over:
        return checked
    kept, rest = [], dict.fromkeys(over, MAX_OF_A_CELL - 1)
    beats = {
        address.cell_id: message
        for message, address in checked
        if address.cell_id in over and message.payload.startswith(_HEARTBEAT)
    }
    for message, address in checked:
        cell_id = address.cell_id
        if cell_id in over and message is not beats.get(cell_id):
            is_older_beat = message.payload.startswith(_HEARTBEAT)
            if is_older_beat or rest[cell_id] <= 0:
                drops.add(OverLimit("more messages of a cell than a batch takes"), message.cell)
                continue
            rest[cell_id] -= _weight(message)
        kept.append((message, address))
    return kept


def _newest(items: list[T], sender: Callable[[T], CellAddress], drops: "_DropCounts") -> list[T]:
    """Return the newest of each incarnation, for up to MAX_OF_A_KIND incarnations of a cell."""
    kept: list[T] = []
    seen: set[CellAddress] = set()
    cells: Counter[int] = Counter()
    for item in reversed(items):
        address = sender(item)
        if address in seen or cells[address.cell_id] >= MAX_OF_A_KIND:
            drops.add(OverLimit("superseded by a newer message of its kind"), address.name)
            continue
        seen.add(address)
        cells[address.cell_id] += 1
        kept.append(item)
    return kept[::-1]


def _sort(message: Envelope, address: CellAddress, found: SortedBatch) -> None:
    body = read_message(message.content(keys.mac_key(address.key, keys.SEAL_REPORTS)))
    position = len(found.registrations) + len(found.goodbyes)
    match body:
        case Register():
            is_supported = message.version == VERSION
            found.registrations.append(
                RegistrationMessage(address, body, message.seq, is_supported, position)
            )
        case Heartbeat():
            held = {item.uid: item.state for item in body.held}
            found.beats.append(Beat(address, message.seq, held, body.unfit, body.clock_ahead))
        case Goodbye():
            found.goodbyes.append(GoodbyeMessage(address, body, message.seq, position))
        case Reports():
            sender = ReportSender(address.cell_id, address.incarnation)
            found.reported += [ReceivedReport(sender, report) for report in body.reports]
            if body.reports:
                last = max(report.seq for report in body.reports)
                found.acknowledgements.append(Acknowledgement(sender, body.after, last))


class _DropCounts:
    """The dropped messages of a batch: counts by reason, and the first one as an example."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._example: dict[str, str] = {}

    def add(self, error: Exception, text: str) -> None:
        """Count one dropped message."""
        reason = _REASONS.get(type(error), "unreadable")
        self.counts[reason] += 1
        if not self._example:
            self._example = {"error": str(error)[:SHOWN_CHARS], "message": text[:SHOWN_CHARS]}

    def log(self) -> None:
        """Log all dropped messages in one line, since there may be a flood of them."""
        if self.counts:
            log.warning("messages_dropped", **self.counts, **self._example)


_REASONS: Mapping[type[Exception], str] = MappingProxyType(
    {
        MalformedMessage: "malformed",
        envelope.BadMac: "bad_mac",
        BadSeal: "bad_seal",
        UnknownCell: "unknown_cell",
        WrongShard: "wrong_shard",
        OverLimit: "over_limit",
    }
)
