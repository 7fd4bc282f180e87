"""Place every input at its path before the start, with its checksum verified.

The cell fetches inputs into the attempt's workspace and then places them into the container. They
come from signed links of the control plane, whose failures are system failures, or from URLs of the
submitter. The folders of the result file and of outputs are created writable for the task's user.
"""

import json
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.contract.messages.orders import GroupSpec, Input
from controlplane.contract.messages.reports import SPEC
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import INPUTS, AttemptFailed
from workers.attempt.runtime import PlacedFile
from workers.attempt.stage_retry import system_failure, with_tries
from workers.attempt.steps.outputs import split_output
from workers.attempt.transfer.transfers import DiskAllowance, fetch


def fetch_inputs(attempt: AttemptRun) -> None:
    """Fetch all inputs, and record what to place. Raise AttemptFailed."""
    spec = attempt.launch.spec
    placed = [PlacedFile(folder, writable=True) for folder in _folders(spec)]
    allowance = DiskAllowance(
        "inputs", attempt.inputs_folder, attempt.context.max_files_bytes, INPUTS
    )
    for number, item in enumerate(spec.inputs):
        path = checked_path("input", item.path, INPUTS)
        target = attempt.inputs_folder / str(number)
        _fetch(attempt, item, target, allowance)
        placed += (
            _expanded(attempt, path, target, allowance)
            if item.bundle
            else [PlacedFile(path, target)]
        )
    if spec.stdin is not None and not any(it.source and it.path == spec.stdin for it in placed):
        message = f"stdin: the inputs have no file {spec.stdin}"
        raise AttemptFailed(FailureKind.USER, INPUTS, message)
    attempt.placed = [*attempt.placed, *placed]


def _folders(spec: GroupSpec) -> list[str]:
    """Return the distinct folders of the task's result, streams and outputs.

    Of an output with wildcards: the folder before the first one. Raise AttemptFailed.
    """
    files = {"result_file": spec.result_file, "stdout": spec.stdout, "stderr": spec.stderr}
    folders = [
        posixpath.dirname(checked_path(what, path, SPEC)) for what, path in files.items() if path
    ]
    for item in spec.outputs:
        path, pattern = split_output(item)
        plain = checked_path(f"output {item.name}", path, SPEC)
        folders.append(posixpath.dirname(plain) if pattern is None else plain)
    return [folder for folder in dict.fromkeys(folders) if folder != "/"]


def place_inputs(attempt: AttemptRun) -> None:
    """Place the fetched files into the created container. Raise AttemptFailed."""
    if not attempt.placed:
        return

    def place() -> None:
        with attempt.turn():
            attempt.engine.put(attempt.launch, attempt.placed)

    with_tries(attempt, "inputs", place)


def checked_path(what: str, path: str, reason: str) -> str:
    """Return `path` normalized. Raise AttemptFailed if it is not absolute, or contains `..`."""
    parts = path.split("/")
    if not path.startswith("/") or path.endswith("/.") or ".." in parts or "\0" in path:
        message = f"{what}: {path!r} is not an absolute path without .."
        raise AttemptFailed(FailureKind.USER, reason, message)
    plain = posixpath.normpath("/" + path.strip("/"))
    if plain == "/":
        raise AttemptFailed(FailureKind.USER, reason, f"{what}: {path!r} does not name a file")
    return plain


def _fetch(attempt: AttemptRun, item: Input, target: Path, allowance: DiskAllowance) -> None:
    what, sha256 = f"input {item.path}", item.sha256 or ""

    def fetch_once() -> None:
        fetch(attempt, what, item.url, target, allowance, named=item.named, sha256=sha256)

    with_tries(attempt, "inputs", fetch_once, system_failure(INPUTS))


def _expanded(
    attempt: AttemptRun, folder: str, bundle: Path, allowance: DiskAllowance
) -> list[PlacedFile]:
    """Extract or fetch each file of a bundle to a file beside it; return what to place."""
    placed = [PlacedFile(folder)]
    for number, entry in enumerate(_entries(folder, bundle)):
        name = entry["name"]
        if not isinstance(name, str) or name in ("", ".") or name.startswith("/"):
            message = f"input {folder}: {name!r} is not a valid file name in a bundle"
            raise AttemptFailed(FailureKind.USER, INPUTS, message)
        path = checked_path("input", f"{folder}/{name}", INPUTS)
        source = bundle.with_name(f"{bundle.name}-{number}")
        if "url" in entry:
            named = bool(entry.get("named"))
            item = Input(path, str(entry["url"]), str(entry["sha256"]), named=named)
            _fetch(attempt, item, source, allowance)
        else:
            source.write_text(entry["content"], encoding="utf-8", errors="surrogatepass")
        placed.append(PlacedFile(path, source))
    return placed


def _entries(folder: str, bundle: Path) -> Iterator[dict[str, Any]]:
    with open(bundle, encoding="utf-8") as lines:
        for number, line in enumerate(filter(str.strip, lines)):
            try:
                entry = json.loads(line)
                is_text = isinstance(entry.get("content"), str) and "name" in entry
                is_link = isinstance(entry.get("url"), str) and {"name", "sha256"} <= entry.keys()
            except (ValueError, AttributeError):
                is_text = is_link = False
            if not is_text and not is_link:
                message = f"input {folder}: line {number + 1} of the bundle is not a valid entry"
                raise AttemptFailed(FailureKind.SYSTEM, INPUTS, message)
            yield entry
