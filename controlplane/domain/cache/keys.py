"""Keys of the result cache: tasks with equal keys have the same result.

A derived key begins with the number of the rule that made it. A changed rule has a new number, so
it never finds entries of an earlier rule.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

RULE = 1
"""The number of the rule of `derive_key`; a change of the rule requires a new number."""

# The fields of a launch that determine what the program does and what its outputs are.
_FIELDS = (
    *("task_type", "image", "entrypoint", "command", "workdir", "user", "env"),
    *("secrets", "mounts", "outputs", "result_file", "stdin", "stdout", "stderr"),
)


class NoKey(Exception):
    """The content of an input is unknown, so no key can be derived."""


def derive_key(
    launch: Mapping[str, Any],
    *,
    index: int,
    replicas: int,
    version: str,
    digests: Mapping[int, str],
) -> str:
    """Return the key of a task from the definition of its group. Raise NoKey.

    `index`, `replicas`: of the task and its group, which programs use to divide the work.
    `digests`: the digest of what another group produced, by the position of the input.
    """
    inputs = [
        [item["path"], _content(item, digests.get(position))]
        for position, item in enumerate(launch.get("inputs") or ())
    ]
    definition = {name: launch[name] for name in _FIELDS if launch.get(name) not in (None, [], {})}
    text = json.dumps(
        [RULE, version, index, replicas, inputs, definition],
        sort_keys=True,
        separators=(",", ":"),
    )
    return f"auto-{RULE}-{hashlib.sha256(text.encode()).hexdigest()}"


def given_key(key: str, version: str) -> str:
    """Return the key of a task whose submitter chose `key`; no derived key equals it."""
    return f"{key}@{version}"


def identity_of(scope: str, key: str) -> UUID:
    """Return the identity of a key within a scope, a project or a domain."""
    return UUID(bytes=hashlib.sha256(f"{scope}\0{key}".encode()).digest()[:16])


def digest_of_files(files: Sequence[tuple[str, str]]) -> str:
    """Return the digest of the files (name, SHA-256) that an input consists of."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def _content(item: Mapping[str, Any], produced: str | None) -> list[str]:
    if "from_group" in item:
        if produced is None:
            raise NoKey(f"the content of {item['path']} is not known yet")
        return ["group", produced]
    if "sha256" in item:
        return ["content", item["sha256"]]
    raise NoKey(f"the URL of {item['path']} has no sha256")
