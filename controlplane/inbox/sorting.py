"""From raw messages to what they say: MACs checked, malformed ones dropped with a log line."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from controlplane.commands.cell_messages import Beat
from controlplane.commands.reports import Acknowledgement, Reported
from controlplane.contract import envelope, keys
from controlplane.contract.envelope import VERSION, Envelope
from controlplane.contract.fields import Malformed
from controlplane.contract.queues import INBOX_SHARDS
from controlplane.contract.reports import Goodbye, Heartbeat, Register, Reports, read_message
from controlplane.domain.cell_keys import CellAddress
from controlplane.domain.reports import Sender
from controlplane.queries.addresses import find_keys

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """A Register with its sender."""

    address: CellAddress
    register: Register
    seq: int
    spoken: bool


@dataclass(slots=True)
class Sorted:
    """The messages of a batch by kind."""

    registrations: list[Registration] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    goodbyes: list[tuple[CellAddress, Goodbye, int]] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)
    dropped: int = 0

    @property
    def is_more_than_beats(self) -> bool:
        """Whether anything in it cannot wait as heartbeats do."""
        others = (self.registrations, self.goodbyes, self.reported, self.acknowledgements)
        return any(others) or bool(self.probes or self.dropped)


class Directory:
    """Cell ids and keys by name, read once and again for names not seen yet."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, bytes, bytes]] = {}

    def learn(self, names: Iterable[str]) -> None:
        """Look up the names that are not known."""
        unknown = sorted({name for name in names if name not in self._known})
        if unknown:
            for name, (cell_id, key) in find_keys(unknown).items():
                self._known[name] = (cell_id, key, keys.mac_key(key, keys.TO_CONTROL))

    def check(self, message: Envelope) -> CellAddress:
        """The sender of an envelope, its MAC checked. Raises Malformed, BadMac."""
        known = self._known.get(message.cell)
        if known is None:
            raise envelope.BadMac(f"cell {message.cell!r} is not enrolled")
        cell_id, key, mac_key = known
        message.check(mac_key)
        return CellAddress(cell_id, message.cell, message.incarnation, key)

    def forget(self) -> None:
        """Keys may have changed: look all of them up again."""
        self._known.clear()


def sort_messages(raw: Sequence[str], directory: Directory) -> Sorted:
    """Read a batch. What cannot be read is counted and logged, and stops nothing."""
    found = Sorted()
    envelopes = []
    for text in raw:
        try:
            probe = _read_probe(text)
            if probe is not None:
                found.probes.append(probe)
            else:
                envelopes.append(envelope.parse(text))
        except Malformed as error:
            _drop(found, error, text)
    directory.learn(message.cell for message in envelopes)
    for message in envelopes:
        try:
            _sort(message, directory.check(message), found)
        except Malformed as error:
            _drop(found, error, message.cell)
    return found


def _sort(message: Envelope, address: CellAddress, found: Sorted) -> None:
    body = read_message(message.body())
    match body:
        case Register():
            spoken = message.version == VERSION
            found.registrations.append(Registration(address, body, message.seq, spoken))
        case Heartbeat():
            held = {item.uid: item.state for item in body.held}
            found.beats.append(Beat(address, message.seq, held, body.unfit, body.clock_ahead))
        case Goodbye():
            found.goodbyes.append((address, body, message.seq))
        case Reports():
            sender = Sender(address.cell_id, address.incarnation)
            found.reported += [Reported(sender, report) for report in body.reports]
            if body.reports:
                last = max(report.seq for report in body.reports)
                found.acknowledgements.append(Acknowledgement(sender, body.after, last))


def _read_probe(text: str) -> int | None:
    if len(text) > 64 or not text.startswith('{"probe"'):
        return None
    try:
        shard = json.loads(text).get("probe")
    except ValueError as error:
        raise Malformed("not a probe") from error
    if not isinstance(shard, int) or not 0 <= shard < INBOX_SHARDS:
        raise Malformed("not a probe of a shard of ours")
    return shard


def _drop(found: Sorted, error: Malformed, text: str) -> None:
    found.dropped += 1
    log.warning("message_dropped", error=str(error), message=text[:200])
