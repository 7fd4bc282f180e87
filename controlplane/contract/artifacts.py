"""Names and storage paths of the artifacts of attempts, shared by control plane and cells."""

import hashlib
from urllib.parse import quote

CHECKPOINT = "_checkpoint.tar"
"""The name of what an attempt left for the next one of its task."""
MAX_NAME_CHARS = 255
PIECE_BYTES = 1024 * 1024  # of one request; a web process takes at least so much
# What Django leaves as it is in the path of a request: signatures are made over its text.
_SAFE = "/:@&+$,-_.!~*'()"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def prefix_of(*, domain: str, project: str, job: int, task: int, attempt: str) -> str:
    """`<shard>/<domain>/<project>/<job>/<task>/<attempt>`, which no two attempts share.

    The shard, two base-36 digits of the attempt, spreads them over the partitions of an object
    store (Flyte).
    """
    number = int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big")
    shard = _DIGITS[number // 36 % 36] + _DIGITS[number % 36]
    names = (_plain(domain), _plain(project), str(job), str(task), attempt)
    return "/".join((shard, *names))


def is_name(name: str) -> bool:
    """Return whether `name` may be that of an artifact: parts with

    between, none leads elsewhere.
    """
    return (
        0 < len(name) <= MAX_NAME_CHARS
        and len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_CHARS
        and name.isprintable()
        and "\\" not in name
        and not any(part in ("", ".", "..") for part in name.split("/"))
    )


def path_of(attempt: str, name: str) -> str:
    """Return the address below web at which an artifact is put and read."""
    return f"/api/v1/attempts/{attempt}/artifacts/{quote(name, safe=_SAFE)}"


def _plain(name: str) -> str:
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
