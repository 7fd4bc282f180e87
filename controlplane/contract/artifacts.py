"""Names and storage paths of the artifacts of attempts, shared by control plane and cells."""

import hashlib
from urllib.parse import quote

CHECKPOINT = "_checkpoint.tar"
"""Name of the checkpoint for the next attempt of the task."""
MANIFEST = "_manifest.json"
"""Name of the list of the artifacts, which the control plane stores beside them."""
INDEX = "{index}"
"""In the address of an output: the index of the task."""
MAX_NAME_CHARS = 255
MAX_FILE_BYTES = 2**50
"""More than any store has for one file; the sum for one attempt fits into a column."""
STORED_BYTES = "stored_bytes"
"""The `code` of a response 507 if the project has used up its limit, which a repetition cannot
change; other responses 507 are about a store with too little free space.
"""
PIECE_BYTES = 1024 * 1024  # maximum body of one upload request
# Characters that Django does not quote in request paths, which signatures cover.
_SAFE = "/:@&+$,-_.!~*'()"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def prefix_of(*, domain: str, project: str, job: int, task: int, attempt: str) -> str:
    """Return the unique prefix `<shard>/<domain>/<project>/<job>/<task>/<attempt>` of an attempt.

    The shard, two base-36 digits of a hash, spreads attempts over the partitions of an object store
    (as in Flyte).
    """
    number = int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big")
    shard = _DIGITS[number // 36 % 36] + _DIGITS[number % 36]
    names = (_plain(domain), _plain(project), str(job), str(task), attempt)
    return "/".join((shard, *names))


def is_name(name: str) -> bool:
    """Return whether `name` is valid for an artifact: parts between "/", without "." and ".."."""
    return (
        0 < len(name) <= MAX_NAME_CHARS
        and len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_CHARS
        and name.isprintable()
        and "\\" not in name
        and not any(part in ("", ".", "..") for part in name.split("/"))
    )


def path_of(attempt: str, name: str) -> str:
    """Return the URL path at which an artifact is written and read."""
    return f"/api/v1/attempts/{attempt}/artifacts/{quoted_name(name)}"


def quoted_name(name: str) -> str:
    """Return a name as a part of a URL path."""
    return quote(name, safe=_SAFE)


def _plain(name: str) -> str:
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
