"""The durable state of a cell, on disk before it acts or reports: orders, ends, acknowledgements.

Each line is an entry: a CRC, then JSON. A torn last line is cut off. The cells of a process may
share a file (`JournalFile`) with one fsync for all; each has its own `CellJournal`.
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
from controlplane.contract.messages.phases import read_phases
from controlplane.contract.messages.reports import AttemptReport
from workers.cell_attempt import CellAttempt
from workers.finished_attempts import FinishedAttempt, FinishedAttempts
from workers.journal_file import NO_ROOM, JournalStore

log = structlog.get_logger(__name__)

# A file is compacted when it has grown by at least this since the last compaction.
COMPACT_BYTES = 16 << 20
# How long a uid stays known after the deadline of its order.
KNOWN_SECONDS = 24 * 3600.0


@dataclass(slots=True)
class JournalState:
    """The durable state of one cell. Each entry is applied by one method, live and in a replay.

    `written`: number of all entries so far, including compacted ones. `starts`: starts of processes
    since the last acceptance. `claim`: value of `written` at the first of these. `done`: attempts
    whose end was acknowledged, or that were refused.
    """

    incarnation: str = ""
    written: int = 0
    claim: int | None = None
    starts: int = 0
    acked: int = 0
    specs: dict[int, GroupSpec] = field(default_factory=dict)
    attempts: dict[str, CellAttempt] = field(default_factory=dict)
    done: FinishedAttempts = field(default_factory=FinishedAttempts)

    @property
    def is_blank(self) -> bool:
        """Whether no attempts are known, and this incarnation was never accepted."""
        return not self.attempts and (not self.incarnation or self.claim is not None)

    def used_specs(self) -> set[int]:
        """Return the ids of the specs of attempts that are not done."""
        return {record.run.spec_id for record in self.attempts.values()}

    def apply(self, kind: str, rest: list[Any]) -> None:
        """Apply an entry of the file; unknown kinds are ignored."""
        match kind, rest:
            case "incarnation", [incarnation]:
                self.begin(incarnation)
            case "boot", [written]:
                self.boot(written)
            case "accepted", _:
                self.accept()
            case "counts", [written, claim, starts]:
                self.written, self.claim, self.starts = written, claim, starts
            case "left", _:
                self.leave()
            case "acked", [acked]:
                self.acknowledge(acked)
            case "spec", [body]:
                spec = GroupSpec.read(body)
                self.specs[spec.id] = spec
            case "take", [body]:
                run = RunAttempt.read(body)
                if run.spec_id in self.specs:
                    self.take(run, self.specs[run.spec_id])
                else:  # without a spec, only the end can be reported
                    log.error("spec_not_in_journal", task=run.task_id, attempt=run.uid)
                    self.finish(run.uid, run.start_before + KNOWN_SECONDS, False)
            case "done", [uid, until, *never_created]:
                self.finish(uid, until, bool(never_created))
            case "known", [int(hour), bool(never_created), str(digests)]:
                self.done.add_page(hour, never_created, digests)
            case "stop", [body]:
                self.stop(StopAttempt.read(body))
            case "end", [body]:
                self.end(AttemptReport.read(body))
            case _, [uid, *facts] if uid in self.attempts:
                self._apply_to_attempt(self.attempts[uid], kind, facts)

    def begin(self, incarnation: str) -> None:
        """Begin a new incarnation: keep only the number of entries."""
        self.incarnation = incarnation
        self.acked = 0
        self.claim = None
        self.starts = 0
        self.specs.clear()
        self.attempts.clear()
        self.done.clear()

    def boot(self, written: int) -> None:
        """Count the start of a process."""
        self.claim = written if self.claim is None else self.claim
        self.starts += 1

    def accept(self) -> None:
        """Record that the control plane has accepted the process."""
        self.claim, self.starts = None, 0

    def leave(self) -> None:
        """Record the orderly end of a process, which clears the crash counts."""
        for record in self.attempts.values():
            record.crashes = 0

    def acknowledge(self, number: int) -> None:
        """Record that the control plane has all reports up to `number`."""
        self.acked = max(self.acked, number)

    def take(self, run: RunAttempt, spec: GroupSpec) -> CellAttempt:
        """Add an attempt and return its record; keep an existing record."""
        self.specs[spec.id] = spec
        return self.attempts.setdefault(run.uid, CellAttempt(run, spec))

    def stop(self, stop: StopAttempt) -> None:
        """Record a stop order."""
        if stop.uid in self.attempts:
            self.attempts[stop.uid].stop = stop

    def end(self, report: AttemptReport) -> None:
        """Record the end of an attempt."""
        if report.uid in self.attempts:
            self.attempts[report.uid].end = report

    def finish(self, uid: str, until: float, never_created: bool) -> None:
        """Replace the record of an acknowledged or refused attempt by its uid."""
        self.attempts.pop(uid, None)
        self.done.add(uid, FinishedAttempt(until, never_created))

    @staticmethod
    def _apply_to_attempt(record: CellAttempt, kind: str, facts: list[Any]) -> None:
        match kind, facts:
            case "start", [at, container_id]:
                record.apply_start(at, container_id)
            case "phases", [count, items]:
                record.apply_phases(count, read_phases(items))
            case "crash", _:
                record.apply_crash()
            case "reach", [stage]:
                record.apply_reach(stage)
            case "move", _:
                record.apply_move()


class JournalFile:
    """The journals of the cells of one process, in one store."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._journals: dict[str, CellJournal] = {}
        self._buffer: list[bytes] = []
        self._memories: dict[str, JournalState] = {}
        self.is_stuck = False
        intact = self._replay(store.read())
        self._compact_at = _next_compaction(intact)

    def journal(self, cell: str) -> "CellJournal":
        """Return the journal of one cell."""
        if cell not in self._journals:
            self._journals[cell] = CellJournal(self, cell, self._memories.get(cell, JournalState()))
        return self._journals[cell]

    def add(self, cell: str, entry: list[Any]) -> None:
        """Buffer an entry, which is durable after `sync`."""
        self._buffer.append(_line([cell, *entry]))

    def sync(self) -> bool:
        """Make all entries durable with one write and one fsync.

        Return False if the disk is full. The next sync writes the entries again; until it succeeds,
        no action or report that depends on them is allowed.
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
        """Rewrite the file with only the needed entries. Raise OSError."""
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
            memory.apply(kind, rest)
        if intact < len(content):
            self._store.cut(intact)
        return intact


class CellJournal:
    """One cell's journal. Each method adds an entry to the file and applies it to `memory`."""

    def __init__(self, file: JournalFile, cell: str, memory: JournalState) -> None:
        self._file = file
        self._cell = cell
        self.memory = memory

    def find(self, uid: str) -> CellAttempt | None:
        """Return the record of an attempt whose end is not acknowledged, if there is one."""
        return self.memory.attempts.get(uid)

    def open_attempts(self) -> list[CellAttempt]:
        """Return the attempts that have not ended."""
        return [record for record in self.memory.attempts.values() if record.end is None]

    def begin(self, incarnation: str) -> None:
        """Record the start of a process of this incarnation."""
        if incarnation != self.memory.incarnation:
            self._write("incarnation", incarnation)
            self.memory.begin(incarnation)
        written = self.memory.written
        self._write("boot", written)
        self.memory.boot(written)

    def accept(self) -> None:
        """Record that the control plane has accepted the process."""
        self._write("accepted", True)
        self.memory.accept()

    def take(self, run: RunAttempt, spec: GroupSpec) -> CellAttempt:
        """Record an accepted order, and return the attempt's record."""
        if self.memory.specs.get(spec.id) != spec:
            self._write("spec", spec.body())
        self._write("take", run.body())
        return self.memory.take(run, spec)

    def start(self, record: CellAttempt, at: float, container_id: str | None) -> None:
        """Record that the container runs since `at`."""
        self._write("start", record.uid, at, container_id)
        record.apply_start(at, container_id)

    def save_phases(self, record: CellAttempt) -> None:
        """Make its changes of phase durable before they are reported."""
        if not record.unsaved_phases:
            return
        changes = record.unsaved_phases
        count = changes[-1].number
        self._write("phases", record.uid, count, [change.body() for change in changes])
        record.apply_phases(count, changes)

    def crash(self, record: CellAttempt) -> None:
        """Record that a process was killed before the attempt made progress."""
        self._write("crash", record.uid)
        record.apply_crash()

    def reach(self, record: CellAttempt, stage: int) -> None:
        """Record progress since the kill of a process, which the attempt did not cause."""
        self._write("reach", record.uid, stage)
        record.apply_reach(stage)

    def leave(self) -> None:
        """Record the orderly end of the process."""
        self._write("left", True)
        self.memory.leave()

    def stop(self, stop: StopAttempt) -> None:
        """Record a stop order."""
        self._write("stop", stop.body())
        self.memory.stop(stop)

    def move(self, record: CellAttempt) -> None:
        """Record that the leaving cell stops the attempt, whose task will run elsewhere."""
        self._write("move", record.uid)
        record.apply_move()

    def end(self, report: AttemptReport) -> None:
        """Record the end of an attempt; the report is numbered when it is sent."""
        self._write("end", report.body())
        self.memory.end(report)

    def finish(self, uid: str, start_before: float, *, never_created: bool = False) -> None:
        """Record that the end is acknowledged, or the order refused; keep the uid for a day."""
        until = start_before + KNOWN_SECONDS
        self._write("done", uid, until, *([True] if never_created else []))
        self.memory.finish(uid, until, never_created)

    def acknowledge(self, number: int) -> None:
        """Record that the control plane has all reports up to `number`; this needs no fsync."""
        if number > self.memory.acked:
            self._write("acked", number)
            self.memory.acknowledge(number)

    def lacks_room(self) -> bool:
        """Return whether the disk is full, or nearly so."""
        return self._file.lacks_room()

    def forget(self, now: float) -> None:
        """Forget unneeded uids and specs; compaction removes them from the file."""
        memory = self.memory
        memory.done.forget(now)
        for spec_id in memory.specs.keys() - memory.used_specs():
            del memory.specs[spec_id]

    def live_entries(self) -> Iterable[list[Any]]:
        """Yield entries that restore the current state."""
        memory = self.memory
        yield ["incarnation", memory.incarnation]
        yield ["acked", memory.acked]
        for spec_id in sorted(memory.used_specs() & set(memory.specs)):
            yield ["spec", memory.specs[spec_id].body()]
        for uid, record in memory.attempts.items():
            yield ["take", record.run.body()]
            if record.started_at is not None:
                yield ["start", uid, record.started_at, record.container_id]
            if record.stop is not None:
                yield ["stop", record.stop.body()]
            if record.is_moving:
                yield ["move", uid]
            if record.end is not None:
                yield ["end", record.end.body()]
            elif record.phase_count:
                phases = [change.body() for change in record.phases]
                yield ["phases", uid, record.phase_count, phases]
            if record.stage:
                yield ["reach", uid, record.stage]
            yield from (["crash", uid] for _ in range(record.crashes))
        yield from memory.done.entries()
        yield ["counts", memory.written, memory.claim, memory.starts]

    def _write(self, kind: str, *facts: Any) -> None:
        self.memory.written += 1
        self._file.add(self._cell, [kind, *facts])


def _next_compaction(size: int) -> int:
    """Return the size of the next compaction: at least double, to bound the total work."""
    return size + max(size, COMPACT_BYTES)


def _line(entry: list[Any]) -> bytes:
    text = compact_json(entry).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read_line(line: bytes) -> list[Any] | None:
    """Return the entry of a line; None: the line is torn."""
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
