"""Store all outputs of a successful task before its success is reported.

Outputs with `keep_on_failure` are also stored before a failure is reported. The next process of the
cell repeats interrupted uploads; the content is the same.
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from controlplane.contract.artifacts import is_name
from controlplane.contract.codec import clean_text
from controlplane.contract.messages.reports import MAX_OUTPUTS
from controlplane.contract.messages.task_options import Output
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.outcome import OUTPUTS, VANISHED, AttemptFailed
from workers.attempt.stage_retry import system_failure, with_tries
from workers.attempt.transfer.transfers import DiskAllowance, OutputTransfer

T = TypeVar("T")
# The list of outputs is part of a report, and a message is limited to 1 MiB.
MAX_LIST_BYTES = 256 * 1024
LOST_CHARS = 200  # of the reason why an output of a failed attempt was not kept
# Pauses of additional tries, as multiples of the last pause of other stages: 80 s in all.
EXTRA_BACK_OFF_FACTORS = (2, 4, 7, 7)


def keep_outputs(attempt: AttemptRun) -> None:
    """Store all outputs of a successful attempt. Raise AttemptFailed."""
    outputs = attempt.launch.spec.outputs
    if not outputs:
        return
    transfer, allowance = OutputTransfer(attempt), _allowance(attempt)
    kept: list[dict[str, object]] = []
    for output in outputs:
        _store(transfer, output, allowance, kept)
    attempt.outputs = tuple(kept)


def keep_outputs_of_failure(transfer: OutputTransfer) -> None:
    """Store the outputs with `keep_on_failure`; name those that are not stored in the usage."""
    attempt = transfer.attempt
    allowance, lost = _allowance(attempt), []
    kept: list[dict[str, object]] = [dict(item) for item in attempt.outputs or ()]
    for output in attempt.launch.spec.outputs:
        if not output.keep_on_failure:
            continue
        try:
            _store(transfer, output, allowance, kept)
        except DriverClosed:
            raise
        except Exception as failure:  # any error: the end itself is reported
            lost.append(clean_text(getattr(failure, "message", None) or str(failure), LOST_CHARS))
    attempt.outputs = tuple(kept) or None
    if lost:
        attempt.log.warning("outputs_lost", errors=lost)
        attempt.usage["outputs_lost"] = lost


def _allowance(attempt: AttemptRun) -> DiskAllowance:
    return DiskAllowance("outputs", attempt.workspace, attempt.context.max_files_bytes, OUTPUTS)


def _store(
    transfer: OutputTransfer,
    output: Output,
    allowance: DiskAllowance,
    kept: list[dict[str, object]],
) -> None:
    """Store the files of one output and append each to `kept`. Raise AttemptFailed."""
    tar = transfer.attempt.workspace / "output.tar"
    try:
        save(transfer, output.path, tar, allowance, f"output {output.name}")
        for name, source in _files(output, tar):
            put = partial(transfer.put, name, source)
            kept.append(with_output_tries(transfer, f"output {name}", put))
            _check_list(kept)
    finally:
        tar.unlink(missing_ok=True)


def save(
    transfer: OutputTransfer, path: str, tar: Path, allowance: DiskAllowance, what: str
) -> None:
    """Have the engine write the file or folder at `path` to `tar`. Raise AttemptFailed."""
    attempt = transfer.attempt

    def take(count: int) -> None:
        transfer.check()
        allowance.take(count)

    def save_once() -> bool:
        transfer.check()
        with allowance.undone_on_error():
            return attempt.engine.save(attempt.launch, path, tar, take)

    if with_output_tries(transfer, what, save_once):
        return
    if attempt.engine.view(attempt.uid) is None:
        message = f"{what}: its container is gone"
        raise AttemptFailed(FailureKind.OUTSIDE, VANISHED, message, 0)
    raise AttemptFailed(FailureKind.USER, OUTPUTS, f"{what}: there is no {path}", 0)


def _files(output: Output, tar: Path) -> Iterator[tuple[str, Callable[[], BinaryIO]]]:
    """Yield the saved files by the names under which they are stored, without symbolic links."""

    def refused(text: str) -> AttemptFailed:
        return AttemptFailed(FailureKind.USER, OUTPUTS, f"output {output.name}: {text}", 0)

    with tarfile.open(tar) as saved:
        root = saved.next()
        if root is None or not (root.isreg() or root.isdir()):
            raise refused(f"{output.path} is neither a file nor a folder")
        for entry in saved:
            is_root = entry.name == "."
            if not (entry.isreg() or entry.islnk()):
                continue
            name = output.name if is_root else f"{output.name}/{entry.name}"
            if not is_name(name):
                raise refused(f"{entry.name!r} is too long or contains invalid characters")
            yield name, cast("Callable[[], BinaryIO]", partial(saved.extractfile, entry))


def with_output_tries(transfer: OutputTransfer, what: str, action: Callable[[], T]) -> T:
    """Return the value of `action`, retried for about 80 s, longer than a restart takes.

    A failure has exit code 0, because the program had ended successfully.
    """
    attempt, judge = transfer.attempt, system_failure(OUTPUTS)
    last = attempt.context.back_off[-1:]
    longer = tuple(pause * factor for pause in last for factor in EXTRA_BACK_OFF_FACTORS)
    try:
        return with_tries(attempt, what, action, judge, pause=transfer.pause, longer=longer)
    except AttemptFailed as failure:
        failure.exit_code = 0
        raise


def _check_list(kept: list[dict[str, object]]) -> None:
    if len(kept) > MAX_OUTPUTS or len(json.dumps(kept)) > MAX_LIST_BYTES:
        message = f"outputs: more than {MAX_OUTPUTS} files, or names too long: use an archive"
        raise AttemptFailed(FailureKind.USER, OUTPUTS, message, 0)
