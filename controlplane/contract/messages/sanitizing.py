"""Sanitize texts and objects of runners and engines, so that PostgreSQL can store them."""

import math
from collections.abc import Mapping
from typing import Any

from controlplane.contract.codec import clean_text, compact_json
from controlplane.contract.messages.launch_context import MAX_PLUGIN_STATE_BYTES

MAX_BYTES = MAX_PLUGIN_STATE_BYTES
MAX_DEPTH = 16


MAX_STEP_SECONDS = 1e9
"""About 30 years, so that times computed from it can be represented."""


class _NestingTooDeep(Exception):
    pass


def clean_mapping(value: Any) -> Mapping[str, Any] | None:
    """Return the object `value` without NUL, lone surrogates, NaN and Infinity.

    Return None if it is not an object, nested too deeply, or too large. It is an optional part of a
    report, so an invalid value does not invalidate the report.
    """
    if not isinstance(value, dict):
        return None
    try:
        # First of all, because cleaning takes a hundred times longer than encoding.
        if len(compact_json(value)) > MAX_BYTES:
            return None
        cleaned = _clean(value, MAX_DEPTH)
    except (_NestingTooDeep, RecursionError):
        return None
    mapping: dict[str, Any] = cleaned
    return mapping if len(compact_json(mapping)) <= MAX_BYTES else None


def clean_usage(value: Any) -> Mapping[str, Any] | None:
    """Return the figures of the object `value`, and of its object `steps`; omit all else.

    A figure is a number from 0 to 2^53, of seconds of a step at most MAX_STEP_SECONDS. Return None
    if `value` is not an object or too large.
    """
    cleaned = clean_mapping(value)
    if cleaned is None:
        return None
    figures = dict(cleaned)
    steps = figures.pop("steps", None)
    usage: dict[str, Any] = _figures(figures, 1 << 53)
    if isinstance(steps, dict):
        usage["steps"] = _figures(steps, MAX_STEP_SECONDS)
    return usage


def _figures(items: Mapping[str, Any], largest: float) -> dict[str, float]:
    return {
        name: item
        for name, item in items.items()
        if isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item <= largest
    }


def _clean(value: Any, depth: int) -> Any:
    if depth == 0:
        raise _NestingTooDeep
    match value:
        case str():
            return clean_text(value, MAX_BYTES)
        case dict():
            return {clean_text(key): _clean(item, depth - 1) for key, item in value.items()}
        case list():
            return [_clean(item, depth - 1) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
