"""The state that a cell must not lose, on disk before it acts or reports: orders, ends,
acknowledgements.

One line a record: a CRC, then JSON. A torn last line is cut off. Many cells of one process may
share a file (`JournalFile`), so that one fsync serves all; each has its own `CellJournal` on it.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from controlplane.contract.codec import compact_json
from controlplane.contract.messages.orders import (
    GroupSpec,
    RunAttempt,
    StopAttempt,
)
from controlplane.contract.messages.phases import PhaseChange, read_phases, shorten, unite
from controlplane.contract.messages.reports import AttemptReport
from workers.journal_file import NO_ROOM, Store

log = structlog.get_logger(__name__)

# A file is compacted when it has grown at least so far beyond its size after the last compaction.
COMPACT_BYTES = 16 << 20


@dataclass(slots=True)
class JournaledAttempt:
    """One attempt as the journal has it.

    `is_moving`: its cell was leaving and stopped it, so that it runs elsewhere.

    `crashes`: starts of a process since it progressed, or since one left in order. `stage`: how far
    it was known to be then.

    `phases`: the changes of phase that may not be acknowledged; `phase_count`: how many there were.
    """

    run: RunAttempt
    started_at: float | None = None
    container_id: str | None = None
    stop: StopAttempt | None = None
    is_moving: bool = False
    end: AttemptReport | None = None
    crashes: int = 0
    stage: int = 0
    phases: tuple[PhaseChange, ...] = ()
    phase_count: int = 0


@dataclass(frozen=True, slots=True)
class FinishedAttempt:
    """A uid of the past, to be known `until` then (seconds since 1970)."""

    until: float
    never_created: bool = False


@dataclass(slots=True)
class JournalState:
    """All that one cell remembers.

    `written`: entries ever, more than the file has. `claim`: what `written` was at the first of the
    `starts` since it was last accepted. `done`: uids that ended and were acknowledged, or that were
    refused.
    """

    incarnation: str = ""
    written: int = 0
    claim: int | None = None
    starts: int = 0
    acked: int = 0
    specs: dict[int, GroupSpec] = field(default_factory=dict)
    attempts: dict[str, JournaledAttempt] = field(default_factory=dict)
    done: dict[str, FinishedAttempt] = field(default_factory=dict)

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of what may run: no attempts, no word that it was accepted."""
        return not self.attempts and (not self.incarnation or self.claim is not None)

    def used_specs(self) -> set[int]:
        """Ids of the specs of attempts that are not done."""
        return {item.run.spec_id for item in self.attempts.values()}

    def renew(self, incarnation: str) -> None:
        """Begin another incarnation: all but the number of entries is of the past."""
        self.incarnation = incarnation
        self.acked = 0
        self.claim = None
        self.starts = 0
        self.specs.clear()
        self.attempts.clear()
        self.done.clear()


class JournalFile:
    """The journals of the cells of one process, in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._journals: dict[str, CellJournal] = {}
        self._buffer: list[bytes] = []
        self._memories: dict[str, JournalState] = {}
        self.is_stuck = False
        intact = self._replay(store.read())
        self._compact_at = _next_compaction(intact)

    def journal(self, cell: str) -> "CellJournal":
        """The journal of one cell, with what it remembers."""
        if cell not in self._journals:
            self._journals[cell] = CellJournal(self, cell, self._memories.get(cell, JournalState()))
        return self._journals[cell]

    def add(self, cell: str, entry: list[Any]) -> None:
        """Note an entry; it is safe after `sync`."""
        self._buffer.append(_line([cell, *entry]))

    def sync(self) -> bool:
        """Make all entries safe: one write and one fsync for all cells.

        False: the disk is full. The entries are kept and written with those that follow; until then
        nothing that depends on them may be done or reported.
        """
        if not self._buffer:
            return True
        try:
            self._store.append(b"".join(self._buffer))
            self._store.sync()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not self.is_stuck:
                log.error("journal_full", error=str(error))
            self.is_stuck = True
            return False
        self._buffer.clear()
        self.is_stuck = False
        if self._store.size() > self._compact_at:
            self._try_to_compact()
        return True

    def lacks_room(self) -> bool:
        """Return whether the end of work that begins now could not be recorded."""
        return self.is_stuck or self._store.lacks_room()

    def _try_to_compact(self) -> None:
        try:
            self.compact()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("journal_not_compacted", error=str(error))
            self._compact_at = self._store.size() + COMPACT_BYTES

    def compact(self) -> None:
        """Rewrite the file with only what is still needed. Raise OSError."""
        lines = [
            _line([cell, *entry])
            for cell, journal in sorted(self._journals.items())
            for entry in journal.live_entries()
        ]
        content = b"".join(lines)
        self._store.replace(content)
        self._compact_at = _next_compaction(len(content))

    def _replay(self, content: bytes) -> int:
        intact = 0
        for line in content.splitlines(keepends=True):
            entry = _read_line(line)
            if entry is None:
                break
            intact += len(line)
            cell, kind, *rest = entry
            memory = self._memories.setdefault(cell, JournalState())
            memory.written += 1
            _apply(memory, kind, rest)
        if intact < len(content):
            self._store.cut(intact)
        return intact


class CellJournal:
    """One cell's journal: `memory` is the present, every change of it goes to the file first."""

    def __init__(self, file: JournalFile, cell: str, memory: JournalState) -> None:
        self._file = file
        self._cell = cell
        self.memory = memory

    def begin(self, incarnation: str) -> None:
        """A process of this incarnation starts."""
        if incarnation != self.memory.incarnation:
            self._note("incarnation", incarnation)
        self._note("boot", self.memory.written)

    def accepted(self) -> None:
        """Record that the process is registered: its messages are newer than all before."""
        self._note("accepted", True)

    def take(self, run: RunAttempt, spec: GroupSpec) -> None:
        """An order is taken."""
        known = self.memory.specs.get(spec.id)
        if known is not spec:
            if known != spec:
                self._write(["spec", spec.body()])
            self.memory.specs[spec.id] = spec
        self._write(["take", run.body()])
        self.memory.attempts.setdefault(run.uid, JournaledAttempt(run))

    def start(self, uid: str, at: float, container_id: str | None) -> None:
        """The attempt's container runs."""
        self._note("start", uid, at, container_id)

    def add_phases(self, uid: str, phases: tuple[PhaseChange, ...]) -> None:
        """Note changes of phase before they are reported."""
        self._write(["phases", uid, phases[-1].number, [change.body() for change in phases]])
        _add_phases(self.memory, uid, phases[-1].number, phases)

    def drop_phases(self, uid: str, number: int) -> None:
        """Forget the changes up to `number`, which are acknowledged, at the next compaction.

        The newest of each kind stays: a successor compares with it what it notes.
        """
        item = self.memory.attempts.get(uid)
        if item is not None:
            newest = {change.kind: change.number for change in item.phases}
            item.phases = tuple(
                change
                for change in item.phases
                if change.number > number or change.number == newest[change.kind]
            )

    def crash(self, uid: str) -> None:
        """The process was killed before the attempt got anywhere."""
        self._note("crash", uid)

    def reach(self, uid: str, stage: int) -> None:
        """The attempt got further than ever: no process was killed by it so far."""
        self._note("reach", uid, stage)

    def leave(self) -> None:
        """The process ends in order: nothing that it handled has killed it."""
        self._note("left", True)

    def stop(self, stop: StopAttempt) -> None:
        """A stop is ordered."""
        self._note("stop", stop.body())

    def move(self, uid: str) -> None:
        """Record that the cell is leaving: the attempt is stopped and will run elsewhere."""
        self._note("move", uid)

    def end(self, report: AttemptReport) -> None:
        """The attempt is over; the report holds all facts, its number is drawn when it is sent."""
        self._write(["end", report.body()])
        if report.uid in self.memory.attempts:
            self.memory.attempts[report.uid].end = report

    def finish(self, uid: str, known_until: float, *, never_created: bool = False) -> None:
        """The end is acknowledged; the uid is known until that instant."""
        self._note("done", uid, known_until, *([True] if never_created else []))

    def hear(self, acked: int) -> None:
        """The control plane has all reports up to this number. Needs no fsync of its own."""
        if acked > self.memory.acked:
            self._note("acked", acked)

    def lacks_room(self) -> bool:
        """Whether the disk is full, or nearly so."""
        return self._file.lacks_room()

    def forget(self, now: float) -> None:
        """Forget uids and specs that are not needed; the file loses them when it is compacted."""
        memory = self.memory
        for uid in [uid for uid, done in memory.done.items() if done.until < now]:
            del memory.done[uid]
        for spec_id in memory.specs.keys() - memory.used_specs():
            del memory.specs[spec_id]

    def live_entries(self) -> Iterable[list[Any]]:
        """The entries from which the present can be read again."""
        memory = self.memory
        yield ["incarnation", memory.incarnation]
        yield ["acked", memory.acked]
        for spec_id in sorted(memory.used_specs() & set(memory.specs)):
            yield ["spec", memory.specs[spec_id].body()]
        for uid, item in memory.attempts.items():
            yield ["take", item.run.body()]
            if item.started_at is not None:
                yield ["start", uid, item.started_at, item.container_id]
            if item.stop is not None:
                yield ["stop", item.stop.body()]
            if item.is_moving:
                yield ["move", uid]
            if item.end is not None:
                yield ["end", item.end.body()]
            if item.phase_count and item.end is None:
                phases = [change.body() for change in item.phases]
                yield ["phases", uid, item.phase_count, phases]
            if item.stage:
                yield ["reach", uid, item.stage]
            yield from (["crash", uid] for _ in range(item.crashes))
        for uid, done in memory.done.items():
            yield ["done", uid, done.until, *([True] if done.never_created else [])]
        yield ["counts", memory.written, memory.claim, memory.starts]

    def _note(self, kind: str, *rest: Any) -> None:
        self._write([kind, *rest])
        _apply(self.memory, kind, list(rest))

    def _write(self, entry: list[Any]) -> None:
        self.memory.written += 1
        self._file.add(self._cell, entry)


def _next_compaction(size: int) -> int:
    """At least twice as large: so that what is rewritten stays in proportion to what is added."""
    return size + max(size, COMPACT_BYTES)


def _apply(memory: JournalState, kind: str, rest: list[Any]) -> None:
    match kind, rest:
        case "incarnation", [incarnation]:
            memory.renew(incarnation)
        case "boot", [written]:
            memory.claim = written if memory.claim is None else memory.claim
            memory.starts += 1
        case "accepted", _:
            memory.claim, memory.starts = None, 0
        case "counts", [written, claim, starts]:
            memory.written, memory.claim, memory.starts = written, claim, starts
        case "left", _:
            for item in memory.attempts.values():
                item.crashes = 0
        case "acked", [acked]:
            memory.acked = max(memory.acked, acked)
        case "spec", [body]:
            spec = GroupSpec.read(body)
            memory.specs[spec.id] = spec
        case "take", [body]:
            run = RunAttempt.read(body)
            memory.attempts.setdefault(run.uid, JournaledAttempt(run))
        case "done", [uid, until, *never]:
            memory.attempts.pop(uid, None)
            memory.done[uid] = FinishedAttempt(until, bool(never))
        case _:
            _apply_to_attempt(memory, kind, rest)


def _apply_to_attempt(memory: JournalState, kind: str, rest: list[Any]) -> None:
    match kind, rest:
        case "start", [uid, at, container_id] if uid in memory.attempts:
            memory.attempts[uid].started_at = at
            memory.attempts[uid].container_id = container_id
        case "crash", [uid] if uid in memory.attempts:
            memory.attempts[uid].crashes += 1
        case "phases", [uid, count, items]:
            _add_phases(memory, uid, count, read_phases(items))
        case "reach", [uid, stage] if uid in memory.attempts:
            memory.attempts[uid].crashes = 0
            memory.attempts[uid].stage = stage
        case "stop", [body]:
            stop = StopAttempt.read(body)
            if stop.uid in memory.attempts:
                memory.attempts[stop.uid].stop = stop
        case "move", [uid] if uid in memory.attempts:
            memory.attempts[uid].is_moving = True
        case "end", [body]:
            report = AttemptReport.read(body)
            if report.uid in memory.attempts:
                memory.attempts[report.uid].end = report


def _add_phases(
    memory: JournalState, uid: str, count: int, phases: tuple[PhaseChange, ...]
) -> None:
    item = memory.attempts.get(uid)
    if item is not None:
        item.phases = shorten(unite(item.phases, phases))
        item.phase_count = count


def _line(entry: list[Any]) -> bytes:
    text = compact_json(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read_line(line: bytes) -> list[Any] | None:
    """The entry of a line; None if the line is torn."""
    if not line.endswith(b"\n") or line[8:9] != b" ":
        return None
    text = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(text):
            return None
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, list) and len(entry) >= 2 else None
