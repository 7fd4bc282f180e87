"""Summarise recorded loads: the hottest statements with their plans, and all findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.plans.parsing import (
    SCAN,
    StatementTotals,
    count_blocks,
    list_findings,
    normalise,
    render,
    result_rows,
)

ID = "PLANS"
TOP = 10
MOST_TEXT = 1_200


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """What was recorded in one load.

    `plans`: by the identifier of a query, of several the plan with the most blocks.
    """

    statements: Sequence[StatementTotals]
    plans: Mapping[int, Mapping[str, Any]]
    samples: Sequence[Mapping[str, Any]]
    table_rows: Mapping[str, int]
    seconds: float


def summarise(phases: Mapping[str, LoadPhase]) -> dict[str, Any]:
    """Return the figures of the hottest statements of the mixed load, and all findings."""
    mixed = phases["mixed"]
    whole = sum(one.milliseconds for one in mixed.statements)
    utility = sum(one.milliseconds for one in mixed.statements if one.is_utility)
    ours = [one for one in mixed.statements if not one.is_utility]
    by_time = sorted(ours, key=lambda it: -it.milliseconds)[:TOP]
    by_calls = sorted(ours, key=lambda it: -it.calls)[:TOP]
    chosen = by_time + [one for one in by_calls if one not in by_time]
    return {
        "table_rows": {name: count for name, count in mixed.table_rows.items() if count},
        "distinct": len(ours),
        "calls": sum(one.calls for one in ours),
        "milliseconds": whole,
        "utility_share": 100 * utility / whole,
        "statements": [
            {
                **_describe(one, mixed),
                "share": 100 * one.milliseconds / whole,
                "is_hottest": one in by_time,
                "is_frequent": one in by_calls,
            }
            for one in chosen
        ],
        "findings": _list_all_findings(phases),
        "phases": {
            name: {"seconds": phase.seconds, "samples": len(phase.samples)}
            for name, phase in phases.items()
        },
    }


def _describe(totals: StatementTotals, phase: LoadPhase) -> dict[str, Any]:
    found = [phase.plans[key] for key in totals.query_ids if key in phase.plans]
    largest = max(found, key=lambda it: count_blocks(it["plan"]), default=None)
    return {
        "text": shorten_statement(totals.text),
        "calls": totals.calls,
        "milliseconds": totals.milliseconds,
        "mean_ms": totals.milliseconds / max(totals.calls, 1),
        "rows": result_rows(largest["plan"]) if largest else 0,
        "plan_ms": largest["milliseconds"] if largest else None,
        "planning_ms": largest["planning_milliseconds"] if largest else None,
        "plan": render(largest["plan"]) if largest else [],
        "findings": [one.kind for one in list_findings(largest["plan"], phase.table_rows)]
        if largest
        else [],
    }


def _list_all_findings(phases: Mapping[str, LoadPhase]) -> list[dict[str, Any]]:
    """Return each finding in any plan that was recorded, with its statement's share."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, phase in phases.items():
        totals = {key: one for one in phase.statements for key in one.query_ids}
        whole = sum(one.milliseconds for one in phase.statements)
        for sample in sorted(phase.samples, key=lambda it: -float(it["milliseconds"])):
            one = totals.get(sample["query_id"])
            text = one.text if one else normalise(sample["sql"])
            for finding in list_findings(sample["plan"], phase.table_rows):
                key = (name, finding.kind, text)
                if key in found:
                    continue
                found[key] = {
                    "phase": name,
                    "kind": finding.kind,
                    "part": finding.text,
                    "text": shorten_statement(text),
                    "calls": one.calls if one else 0,
                    "share": 100 * one.milliseconds / whole if one else 0.0,
                    "plan_ms": sample["milliseconds"],
                    "plan": render(sample["plan"]),
                }
    return sorted(found.values(), key=lambda it: (it["kind"] != SCAN, -it["share"]))


def shorten_statement(text: str) -> str:
    """Return a statement without the middle of a long one."""
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[: MOST_TEXT // 2]} … {text[-MOST_TEXT // 2 :]}"
