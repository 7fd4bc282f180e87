"""Describe a job, and a command of an executor, in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellrun.errors import BadInput


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, which runs as one task.

    `env` is added to that of the executor; `fields` are further fields of a group as in
    docs/job-spec.md, for example `timeout_seconds`. With `result`, the result has the text that the
    program left at its result file.
    """

    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    result: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise BadInput unless the words are a sequence of texts."""
        is_list = isinstance(self.words, Sequence) and not isinstance(self.words, str | bytes)
        if not is_list or not self.words or not all(isinstance(w, str) for w in self.words):
            raise BadInput(f"a command is a list of words, such as ['echo', 'a'], not {self.words}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of one group. Without an image it runs as a plain process of the cell.

    `fields`: all other fields of docs/job-spec.md; its `groups` replace the group described here.
    """

    name: str
    command: Sequence[str] | None = None
    image: str | None = None
    replicas: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None
    guid: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the job as the API accepts it."""
        group = {
            **program_of(self.image),
            "command": None if self.command is None else list(self.command),
            "replicas": self.replicas,
            "env": dict(self.env),
            "resources": dict(self.resources),
        }
        job = {"name": self.name, "pool": self.pool, "guid": self.guid}
        parts = job if "groups" in self.fields else {**job, **group}
        return {**{name: part for name, part in parts.items() if part}, **self.fields}


def program_of(image: str | None) -> dict[str, Any]:
    """Return the fields of a group for a container of an image, or a plain process."""
    return {"task_type": "process"} if image is None else {"image": image}
