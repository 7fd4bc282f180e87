"""Keep all outputs of a task that succeeded before its success is reported.

The next process of the cell repeats interrupted uploads: the content is the same.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from controlplane.contract.artifacts import is_name
from controlplane.contract.messages.reports import MAX_OUTPUTS
from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import OUTPUTS, VANISHED, AttemptFailed
from workers.attempt.stage_retry import with_tries
from workers.attempt.transfer.transfers import DiskAllowance, OutputTransfer

T = TypeVar("T")
# The list of them is part of a report, and a message has 1 MiB.
MAX_LIST_BYTES = 256 * 1024
# Pauses between further tries than a stage has else, as multiples of its last one: 52 s in all.
LONGER = (2, 4, 7)


def keep_outputs(attempt: AttemptRun) -> None:
    """Keep all outputs; return what was kept. Raise AttemptFailed."""
    outputs = attempt.launch.spec.outputs
    if not outputs:
        return
    keeping = OutputTransfer(attempt)
    most = attempt.context.max_files_bytes
    room = DiskAllowance("outputs", attempt.workspace, most, OUTPUTS)
    kept: list[dict[str, object]] = []
    for output in outputs:
        tar = attempt.workspace / "output.tar"
        save(keeping, output.path, tar, room, f"output {output.name}")
        try:
            for name, source in _files(output, tar):
                put = partial(keeping.put, name, source)
                kept.append(tried(keeping, f"output {name}", put))
                _check_list(kept)
        finally:
            tar.unlink(missing_ok=True)
    attempt.outputs = tuple(kept)


def save(keeping: OutputTransfer, path: str, tar: Path, room: DiskAllowance, what: str) -> None:
    """Have the engine write the file or folder at `path` to `tar`. Raises AttemptFailed."""
    attempt = keeping.attempt

    def take(count: int) -> None:
        keeping.check()
        room.take(count)

    def save_once() -> bool:
        keeping.check()
        before = room.taken
        try:
            found = attempt.engine.save(attempt.launch, path, tar, take)
        except BaseException:
            room.taken = before
            raise
        if not found:
            room.taken = before
        return found

    if tried(keeping, what, save_once):
        return
    if attempt.engine.view(attempt.uid) is None:
        message = f"{what}: its container is gone"
        raise AttemptFailed(FailureKind.OUTSIDE, VANISHED, message, 0)
    raise AttemptFailed(FailureKind.USER, OUTPUTS, f"{what}: there is no {path}", 0)


def _files(output: Output, tar: Path) -> Iterator[tuple[str, Callable[[], BinaryIO]]]:
    """The files of what was saved, by the names under which they are kept. Links are not."""

    def refused(words: str) -> AttemptFailed:
        return AttemptFailed(FailureKind.USER, OUTPUTS, f"output {output.name}: {words}", 0)

    with tarfile.open(tar) as saved:
        root = saved.next()
        if root is None or not (root.isreg() or root.isdir()):
            raise refused(f"{output.path} is no file and no folder")
        for entry in saved:
            is_root = entry.name == "."
            if not (entry.isreg() or entry.islnk()):
                continue
            name = output.name if is_root else f"{output.name}/{entry.name}"
            if not is_name(name):
                raise refused(f"{entry.name!r} is too long or strange a name")
            yield name, cast("Callable[[], BinaryIO]", partial(saved.extractfile, entry))


def tried(keeping: OutputTransfer, what: str, action: Callable[[], T]) -> T:
    """Return the value of `action`, retried for about a minute: a restart must not lose hours of
    work.

    The message of a failure states that the program had ended successfully.
    """
    back_off = keeping.attempt.context.back_off
    longer = tuple(back_off[-1] * factor for factor in LONGER) if back_off else ()
    try:
        return with_tries(
            what,
            action,
            judge=lambda words, status: AttemptFailed(FailureKind.SYSTEM, OUTPUTS, words),
            pause=keeping.pause,
            back_off=back_off + longer,
            note=keeping.attempt.note_try,
        )
    except AttemptFailed as failure:
        failure.exit_code = 0
        raise


def _check_list(kept: list[dict[str, object]]) -> None:
    if len(kept) > MAX_OUTPUTS or len(json.dumps(kept)) > MAX_LIST_BYTES:
        message = f"outputs: more than {MAX_OUTPUTS} files, or names too long: keep an archive"
        raise AttemptFailed(FailureKind.USER, OUTPUTS, message, 0)
