"""Generate deploy/prometheus/cellrun.rules.yaml: an alert rule for each kind of alert, and more."""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from controlplane.domain.alerts import ALERTS

_HEAD = """# Alert rules of Cellrun for Prometheus, written by `make docs` from the kinds of alerts.
# The scrape job is named `cellrun`: docs/metrics.md.
"""
_PAGE = "docs/troubleshooting.md"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")

CRITICAL = frozenset(
    {
        "mass_loss",
        "cells_silent",
        "contradiction",
        "exclusive_held",
        "pool_skipped",
        "store_full",
        "tick_late",
    }
)
"""Kinds of alerts for which work stops, or may be lost or done twice."""
INFO = frozenset({"control_plane_gap", "job_skipped", "repaired"})
"""Kinds of alerts that need nothing soon."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule: it fires when `expr` has had a result for `hold`."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str
    runbook: str


OWN_RULES = (
    Rule(
        "CellrunDown",
        'up{job="cellrun"} == 0',
        "2m",
        "critical",
        "Prometheus cannot scrape a web process.",
        "Check web and the network; with the status 401 or 403, the token of Prometheus.",
        "docs/metrics.md#scrape",
    ),
    Rule(
        "CellrunNotScraped",
        "absent(cellrun_cells)",
        "5m",
        "critical",
        "No web process serves metrics to Prometheus.",
        "Check web, PostgreSQL and the scrape job.",
        "docs/metrics.md#scrape",
    ),
    Rule(
        "CellrunConvergenceLate",
        'max by (job) (cellrun_tick_age_seconds{tick="convergence"}) > 60',
        "1m",
        "critical",
        "Convergence has not finished for a minute: no loss, no time limit and no other alert is"
        " acted on.",
        "Check that worker, beat and Redis.",
        "docs/operations.md#monitoring",
    ),
    Rule(
        "CellrunTasksStuck",
        "max by (job, pool) (sum without (band) (cellrun_pool_stuck_tasks)) > 0",
        "30m",
        "warning",
        "No cell of a pool can run some of its waiting tasks.",
        "Check the pending reason of these tasks, and the cells of the pool.",
        "docs/troubleshooting.md#a-task-waits",
    ),
    Rule(
        "CellrunCallbacksOverdue",
        "max by (job) (cellrun_callback_overdue_seconds) > 900",
        "5m",
        "warning",
        "A callback has been due for 15 minutes and is not delivered.",
        "Check the process `callbacks` and the receiver.",
        "docs/operations.md#callbacks-that-do-not-arrive",
    ),
)
"""Rules that follow from other metrics than open alerts."""


def list_rules() -> list[Rule]:
    """Return all rules: those of the kinds of alerts, in their order, come last."""
    return [*OWN_RULES, *map(_rule_of_kind, ALERTS)]


def name_of(kind: str) -> str:
    """Return the name of the rule of a kind of alert: CellrunCellLost of `cell_lost`."""
    return "Cellrun" + "".join(word.capitalize() for word in kind.split("_"))


def write() -> str:
    """Return the rule file."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.expr,
            **({"for": rule.hold} if rule.hold else {}),
            "labels": {"severity": rule.severity},
            "annotations": {
                "summary": rule.summary,
                "description": rule.description,
                "runbook": rule.runbook,
            },
        }
        for rule in list_rules()
    ]
    document: dict[str, Any] = {"groups": [{"name": "cellrun", "rules": rules}]}
    return _HEAD + yaml.safe_dump(document, sort_keys=False, width=100)


def _rule_of_kind(kind: str) -> Rule:
    alert = ALERTS[kind]
    return Rule(
        name_of(kind),
        f'max by (job, kind) (cellrun_alerts{{kind="{kind}"}}) > 0',
        "",
        "critical" if kind in CRITICAL else "info" if kind in INFO else "warning",
        _sentence(alert.meaning),
        _sentence(alert.action),
        f"{_PAGE}#alert-{kind}",
    )


def _sentence(text: str) -> str:
    plain = _LINK.sub(r"\1", text)
    return plain[0].upper() + plain[1:] + ("" if plain.endswith(".") else ".")
