"""Every input stands at its path before the start, its bytes checked, and nothing stands elsewhere.

Inputs are fetched by signed link into the attempt's workspace, then placed into the container. The
folder of the result file is placed with them, writable for whoever the task runs as.
"""

import errno
import hashlib
import json
import posixpath
from collections.abc import Iterator
from pathlib import Path

import requests

from controlplane.contract.orders import Input
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.attempt import Attempt
from workers.attempt.engine import Placed
from workers.attempt.outcome import DISK, INPUTS, SPEC, AttemptFailed, judge_start_error
from workers.attempt.tries import with_tries

HTTP_SECONDS = (3.05, 30.0)  # to connect, and between two pieces
PIECE_BYTES = 256 * 1024


def fetch_inputs(attempt: Attempt) -> None:
    """Fetch all inputs; says what must be placed. Raises AttemptFailed."""
    spec = attempt.launch.spec
    placed: list[Placed] = []
    if spec.result_file is not None:
        folder = posixpath.dirname(checked_path("result_file", spec.result_file, SPEC))
        placed.append(Placed(folder, writable=True))
    for number, item in enumerate(spec.inputs):
        attempt.enter(Phase.PREPARING)
        path = checked_path("input", item.path, INPUTS)
        target = attempt.inputs_folder / str(number)
        with_tries(
            "inputs",
            lambda item=item, target=target: _fetch(attempt, item, target),  # type: ignore[misc]
            judge=lambda words, status: AttemptFailed(FailureKind.SYSTEM, INPUTS, words),
            pause=attempt.pause,
            back_off=attempt.around.back_off,
        )
        placed += _expanded(path, target) if item.bundle else [Placed(path, target)]
    attempt.placed = placed


def place_inputs(attempt: Attempt) -> None:
    """Put what was fetched into the created container. Raises AttemptFailed."""
    if not attempt.placed:
        return

    def place() -> None:
        with attempt.turn():
            attempt.engine.put(attempt.launch, attempt.placed)

    with_tries(
        "inputs",
        place,
        judge=lambda words, status: judge_start_error("inputs", words, status),
        pause=attempt.pause,
        back_off=attempt.around.back_off,
    )


def checked_path(what: str, path: str, reason: str) -> str:
    """`path`, absolute and plain. Raises AttemptFailed for one that leads elsewhere."""
    parts = path.split("/")
    if not path.startswith("/") or path.endswith("/.") or ".." in parts or "\0" in path:
        message = f"{what}: {path!r} is not an absolute path without .."
        raise AttemptFailed(FailureKind.USER, reason, message)
    plain = posixpath.normpath("/" + path.strip("/"))
    if plain == "/":
        raise AttemptFailed(FailureKind.USER, reason, f"{what}: {path!r} names no file")
    return plain


def _fetch(attempt: Attempt, item: Input, target: Path) -> None:
    if not item.url.startswith(("http://", "https://")):
        message = f"input {item.path}: only http and https links are fetched"
        raise AttemptFailed(FailureKind.USER, INPUTS, message)
    digest = hashlib.sha256()
    try:
        with open(target, "wb") as file:
            for piece in _pieces(item.url):
                attempt.check()
                digest.update(piece)
                file.write(piece)
    except requests.RequestException as error:
        raise _failed(item, str(error)) from error
    except OSError as error:
        reason = DISK if error.errno in (errno.ENOSPC, errno.EDQUOT) else INPUTS
        raise _failed(item, str(error), reason) from error
    if item.sha256 is not None and digest.hexdigest() != item.sha256.lower():
        raise _failed(item, f"sha256 is {digest.hexdigest()}, {item.sha256} was expected")


def _failed(item: Input, words: str, reason: str = INPUTS) -> AttemptFailed:
    # A link carries its signature behind the question mark: that is not for logs and history.
    words = words.replace(item.url.partition("?")[2] or "\0", "…")
    return AttemptFailed(FailureKind.SYSTEM, reason, f"input {item.path}: {words}")


def _pieces(url: str) -> Iterator[bytes]:
    with requests.Session() as session:
        session.trust_env = False  # no proxy and no netrc between a cell and its control plane
        with session.get(url, stream=True, timeout=HTTP_SECONDS) as answer:
            answer.raise_for_status()
            yield from answer.iter_content(PIECE_BYTES)


def _expanded(folder: str, bundle: Path) -> list[Placed]:
    """The files of a bundle (JSON lines of name and content), each in a file beside the bundle."""
    placed = [Placed(folder)]
    with open(bundle, encoding="utf-8") as lines:
        for number, line in enumerate(filter(str.strip, lines)):
            try:
                entry = json.loads(line)
                name, content = entry["name"], entry["content"]
                source = bundle.with_name(f"{bundle.name}-{number}")
                source.write_text(content, encoding="utf-8", errors="surrogatepass")
            except (ValueError, KeyError, TypeError) as error:
                message = f"input {folder}: line {number + 1} of the bundle is no name and content"
                raise AttemptFailed(FailureKind.SYSTEM, INPUTS, message) from error
            if not isinstance(name, str) or name in ("", ".") or name.startswith("/"):
                message = f"input {folder}: {name!r} is no name of a file in it"
                raise AttemptFailed(FailureKind.USER, INPUTS, message)
            placed.append(Placed(checked_path("input", f"{folder}/{name}", INPUTS), source))
    return placed
