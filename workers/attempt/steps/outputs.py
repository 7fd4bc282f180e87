"""Store all outputs of a successful task before its success is reported.

Outputs with `keep_on_failure` are also stored before a failure is reported. The next process of the
cell repeats interrupted uploads; the content is the same.
"""

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from controlplane.contract.artifacts import INDEX, is_name
from controlplane.contract.messages.reports import MAX_OUTPUTS, MAX_URI_CHARS
from controlplane.contract.messages.task_options import Output
from controlplane.contract.patterns import PathPattern, split_path
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.outcome import OUTPUTS, VANISHED, AttemptFailed
from workers.attempt.stage_retry import with_tries
from workers.attempt.transfer.tars import entries_of
from workers.attempt.transfer.transfers import DiskAllowance, OutputTransfer
from workers.remote_files import join

T = TypeVar("T")
# The list of outputs is part of a report, and a message is limited to 1 MiB.
MAX_LIST_BYTES = 256 * 1024
_TOO_MANY = f"more than {MAX_OUTPUTS} files"
# Pauses of additional tries, as multiples of the last pause of other stages: 80 s in all.
EXTRA_BACK_OFF_FACTORS = (2, 4, 7, 7)


def split_output(output: Output) -> tuple[str, PathPattern | None]:
    """Return the path of an output, or the folder before its first wildcard and the pattern.

    Raise AttemptFailed.
    """
    try:
        return split_path(output.path)
    except ValueError as error:
        raise _refused(output, f"its path {error}") from error


def keep_outputs(attempt: AttemptRun) -> None:
    """Store all outputs of a successful attempt. Raise AttemptFailed.

    Those with an address come last, because what is written there stays after a failure.
    """
    outputs = attempt.launch.spec.outputs
    if not outputs:
        return
    transfer, allowance = OutputTransfer(attempt), _allowance(attempt)
    kept: list[dict[str, object]] = []
    for output in sorted(outputs, key=lambda output: output.url is not None):
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
            lost.append(getattr(failure, "message", None) or str(failure))
    attempt.outputs = tuple(kept) or None
    if lost:
        attempt.note_lost(*lost)


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
    before = allowance.taken
    try:
        path, pattern = split_output(output)
        from_path = path if pattern is None else f"{path}/"  # follows a link
        save(transfer, from_path, tar, allowance, f"output {output.name}")
        found = _select(transfer, output, tar)
        if len(kept) + len(found) > MAX_OUTPUTS:
            raise _refused(output, f"{_TOO_MANY}: use an archive")
        with tarfile.open(tar) as saved:
            for file in found:
                source = cast("Callable[[], BinaryIO]", partial(saved.extractfile, file.entry))
                if file.url is not None and any(item["uri"] == file.url for item in kept):
                    raise _refused(output, f"{file.url} is also the address of another output")
                put = partial(transfer.put, file.name, source, file.url)
                kept.append(with_output_tries(transfer, f"output {output.name}", put))
                before += file.entry.size
                if len(json.dumps(kept)) > MAX_LIST_BYTES:
                    raise _refused(output, f"{_TOO_MANY}, or too long names: use an archive")
    finally:
        tar.unlink(missing_ok=True)
        allowance.taken = before  # the rest of a folder with wildcards is not stored


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


@dataclass(frozen=True, slots=True)
class _File:
    """A saved file: the name of its artifact, its entry in the tar, and its own address."""

    name: str
    entry: tarfile.TarInfo
    url: str | None


def _select(transfer: OutputTransfer, output: Output, tar: Path) -> list[_File]:
    """Return the saved files to store, without symbolic links. Raise AttemptFailed."""
    path, pattern = split_output(output)
    entries = entries_of(tar)
    root = next(entries, None)
    if root is None or not (root.isreg() or root.isdir()):
        raise _refused(output, f"{path} is neither a file nor a folder")
    url = output.url
    if url is not None:
        url = url.replace(INDEX, str(transfer.attempt.launch.run.task_index))
    if root.isreg():
        if pattern is not None or path.endswith("/"):
            raise _refused(output, f"{path} is not a folder")
        return [_File(output.name, root, url)]
    prefix = path if output.path_prefix is None else output.path_prefix
    above = path.rstrip("/").removeprefix(prefix.rstrip("/")).strip("/")
    found: list[_File] = []
    for entry in entries:
        transfer.check()
        is_file = entry.isreg() or entry.islnk()
        if not is_file or (pattern is not None and not pattern.matches(entry.name)):
            continue
        inner = f"{above}/{entry.name}" if above else entry.name
        name = f"{output.name}/{inner}"
        address = None if url is None else join(url, inner)
        if not is_name(name) or len(address or "") > MAX_URI_CHARS:
            text = f"{entry.name!r} is too long or contains invalid characters"
            raise _refused(output, text)
        found.append(_File(name, entry, address))
        if len(found) > MAX_OUTPUTS:
            raise _refused(output, f"{_TOO_MANY}: use an archive")
    if pattern is not None and not found:
        raise _refused(output, f"nothing matches {output.path}")
    return _with_content(output, tar, found)


def _with_content(output: Output, tar: Path, found: list[_File]) -> list[_File]:
    """Replace the entries of hard links by those of the files that have their content."""
    wanted = {file.entry.linkname for file in found if file.entry.islnk()}
    if not wanted:
        return found
    files = {entry.name: entry for entry in entries_of(tar) if entry.name in wanted}
    try:
        return [
            replace(file, entry=files[file.entry.linkname]) if file.entry.islnk() else file
            for file in found
        ]
    except KeyError as error:
        raise _refused(output, f"the file {error} of a hard link is missing") from error


def _refused(output: Output, text: str) -> AttemptFailed:
    return AttemptFailed(FailureKind.USER, OUTPUTS, f"output {output.name}: {text}", 0)


def _engine_failure(what: str, text: str, status: int | None) -> AttemptFailed:
    # The path of the output ends with "/", or the program nested folders beyond PATH_MAX.
    is_of_task = "not a directory" in text or "File name too long" in text
    kind = FailureKind.USER if is_of_task else FailureKind.SYSTEM
    return AttemptFailed(kind, OUTPUTS, f"{what}: {text}")


def with_output_tries(transfer: OutputTransfer, what: str, action: Callable[[], T]) -> T:
    """Return the value of `action`, retried for about 80 s, longer than a restart takes.

    A failure has exit code 0, because the program had ended successfully.
    """
    attempt = transfer.attempt
    last = attempt.context.back_off[-1:]
    longer = tuple(pause * factor for pause in last for factor in EXTRA_BACK_OFF_FACTORS)
    try:
        return with_tries(
            attempt,
            what,
            action,
            partial(_engine_failure, what),
            pause=transfer.pause,
            longer=longer,
        )
    except AttemptFailed as failure:
        failure.exit_code = 0
        raise
