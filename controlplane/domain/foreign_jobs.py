"""Remove references to jobs that a reader may not know from documents."""

import re
from collections.abc import Collection, Iterator
from typing import Any

# Texts of reasons and messages name jobs in this form only.
_NAMED = re.compile(r"\bjob ([1-9][0-9]{0,17})\b(?:, task [1-9][0-9]{0,17}\b)?")
_TEXTS = ("text", "message", "failure_reason")
# Fields that are as the submitter wrote them.
_OWN = ("spec", "labels", "annotation", "result")
_OTHER = "a job of another project"
# Figures of reasons that are the id of a job.
_IDS = ("job", "behind")
# Fields that describe the job or task beside its id.
_DESCRIPTION = ("task", "name", "attempt_uid", "submitter", "project", "since")


def named_jobs(document: Any) -> Iterator[int]:
    """Yield the ids of the jobs that a document names in texts and figures."""
    match document:
        case {"shared": False}:
            return  # The origin of a result that only tasks of the same project use.
        case dict():
            for key, value in document.items():
                if key in _IDS and isinstance(value, int):
                    yield value
                elif key in _TEXTS and isinstance(value, str):
                    yield from map(int, _NAMED.findall(value))
                elif key not in _OWN:
                    yield from named_jobs(value)
        case list() | tuple():
            for item in document:
                yield from named_jobs(item)


def without_jobs(document: Any, hidden: Collection[int]) -> Any:
    """Return a document that does not name the jobs `hidden`: their ids are null."""
    match document:
        case dict():
            found = {key: _hide(key, value, hidden) for key, value in document.items()}
            if document.get("job") in hidden:
                found |= {key: None for key in _DESCRIPTION if key in found}
            return found
        case list() | tuple():
            return [without_jobs(item, hidden) for item in document]
    return document


def _hide(key: str, value: Any, hidden: Collection[int]) -> Any:
    if key in _IDS and isinstance(value, int):
        return None if value in hidden else value
    if key in _OWN:
        return value
    if key in _TEXTS and isinstance(value, str):
        return _NAMED.sub(lambda named: _OTHER if int(named[1]) in hidden else named[0], value)
    return without_jobs(value, hidden)
