"""The section "Retry rules" of a job: the rules of its groups, and the ends they decided on."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.admin.badges import instant, page_link
from controlplane.admin.base import Section, Table
from controlplane.domain.state.growth import read_growth
from controlplane.models import Job, TaskGroup
from controlplane.queries.views.attempts import list_rule_decisions

_SHOWN = 20
# Lines of the history that are searched.
_CHANGES = 1_000


def retry_rules_sections(job: Job, groups: Sequence[TaskGroup]) -> list[Section]:
    """Return the rules and the newest ends that they decided; nothing without rules."""
    ruled = [group for group in groups if group.retry_rules]
    if not ruled:
        return []
    rules = [
        (group.name, number, _conditions(rule), describe_action(rule))
        for group in ruled
        for number, rule in enumerate(group.retry_rules or [], start=1)
    ]
    found = list_rule_decisions(job.pk, changes=_CHANGES, limit=_SHOWN)
    decided = [
        (
            page_link("task", row.task, row.name),
            page_link("attempt", row.uid, row.number),
            "" if row.exit_code is None else row.exit_code,
            row.reason,
            row.message,
            instant(row.at),
        )
        for row in found
    ]
    return [
        Table("Retry rules", columns=("group", "rule", "if", "then"), rows=rules),
        Table(
            "Ends that retry rules decided",
            columns=("task", "attempt", "exit code", "reason", "rule", "time"),
            rows=decided,
            empty=f"none among the last {_CHANGES:,} changes of the job",
        ),
    ]


def describe_action(rule: Mapping[str, Any]) -> str:
    """Return what a stored rule does: `fail`, `retry with memory 2x, at most 16Gi`."""
    growth = "; ".join(item.describe() for item in read_growth(rule.get("resources", {})))
    return f"{rule['do']} with {growth}" if growth else rule["do"]


def _conditions(rule: Mapping[str, Any]) -> str:
    found = []
    if "codes" in rule:
        found.append("exit code " + " or ".join(str(code) for code in rule["codes"]))
    if "reason" in rule:
        found.append(f"reason {rule['reason']}")
    return ", ".join(found)
