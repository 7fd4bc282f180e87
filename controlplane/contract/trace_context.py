"""W3C trace context of jobs: the ids of spans follow from the ids of what they describe."""

import re
from hashlib import sha256

# Version 00; a later one may append fields. https://www.w3.org/TR/trace-context/
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


def read_traceparent(text: str) -> tuple[str, str, bool] | None:
    """Return trace id, span id and whether it is sampled; None if the header is invalid."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or (text.startswith("00") and found[4]):
        return None
    trace_id, span_id, flags = found[1], found[2], int(found[3], 16)
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return trace_id, span_id, bool(flags & _SAMPLED)


def format_traceparent(trace_id: str, span_id: str) -> str:
    """Return the header of a sampled span."""
    return f"00-{trace_id}-{span_id}-01"


def read_trace(text: str) -> tuple[str, str]:
    """Return the trace id and the id of the submitter's span, which may be empty, of a group."""
    trace_id, _, parent = text.partition("-")
    return trace_id, parent


def span_id_of(trace_id: str, kind: str, key: object) -> str:
    """Return the id of the span of a `kind` with the `key`."""
    return sha256(f"{trace_id}:{kind}:{key}".encode()).hexdigest()[:16]


def attempt_span_id(trace_id: str, uid: object) -> str:
    """Return the id of the span of an attempt, which the cell computes, too."""
    return span_id_of(trace_id, "attempt", uid)
