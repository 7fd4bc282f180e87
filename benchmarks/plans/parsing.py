"""Read PostgreSQL's log of durations and its plans: totals of statements, and findings.

The formats are those of PostgreSQL's documentation: "jsonlog" (Error Reporting and Logging), and
EXPLAIN with FORMAT JSON, in which rows and removed rows are averages of the loops of a node.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

OURS = "cellrun-"
"""The beginning of the application names of the control plane's connections."""

SCAN = "sequential scan"
WHOLE = "whole index"
DISCARDED = "discarded rows"
SORT = "large sort"

BIG_TABLE_ROWS = 10_000
"""No statement may scan a table with more rows sequentially."""

MOST_SCANNED_ROWS = 1_000
"""A sequential scan of a smaller table may read so many rows each time."""

LEAST_SHARE_WHOLE = 0.5
"""An index without condition that reads more of a big table replaces a sequential scan."""

MOST_DISCARDED_ROWS = 1_000
LEAST_SHARE_KEPT = 0.1
MOST_SORTED_ROWS = 10_000

_DURATION = re.compile(
    r"duration: (?P<ms>[\d.]+) ms  (?P<step>statement|parse|bind|execute)[^:]*: (?P<text>.*)",
    re.DOTALL,
)
_UTILITY = re.compile(
    r"\s*(?:BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET|SHOW|EXPLAIN|DISCARD|DEALLOCATE)\b", re.I
)
_RECORDED = re.compile(
    r"\s*(?:EXPLAIN\b|(?:SAVEPOINT|RELEASE|ROLLBACK|PREPARE|DEALLOCATE)\b.*recorded_plan)", re.I
)
_COMMENT = re.compile(r"--[^\n]*")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_NUMBER = re.compile(r"(?<![\w.$\"])-?\d+(?:\.\d+)?\b")
_LIST = re.compile(r"\((\?)(?:, \?)+\)")
_SPACE = re.compile(r"\s+")

Plan = Mapping[str, Any]


@dataclass(slots=True)
class StatementTotals:
    """All calls of one statement. `text`: without literals; `query_ids`: those of its forms."""

    text: str
    query_ids: set[int]
    calls: int = 0
    milliseconds: float = 0.0

    @property
    def is_utility(self) -> bool:
        """Whether it is empty, begins or ends a transaction, or sets a parameter."""
        return not self.text or _UTILITY.match(self.text) is not None


@dataclass(frozen=True, slots=True)
class PlanFinding:
    """A part of a plan that reads more than it should."""

    kind: str
    text: str


def read_log(lines: Iterable[str]) -> list[StatementTotals]:
    """Return the statements of the control plane in a log of durations as JSON."""
    by_id: dict[int, StatementTotals] = {}
    for line in lines:
        record = json.loads(line)
        found = _DURATION.match(record.get("message", ""))
        if found is None or not record.get("application_name", "").startswith(OURS):
            continue
        key = int(record.get("query_id", 0))
        if _RECORDED.match(found["text"]):
            continue
        if key not in by_id:
            by_id[key] = StatementTotals(normalise(found["text"]), {key})
        by_id[key].milliseconds += float(found["ms"])
        by_id[key].calls += found["step"] in ("statement", "execute")
    return _merge(by_id.values())


def normalise(statement: str) -> str:
    """Return a statement on one line, with ? in the place of each literal."""
    text = _TEXT.sub("?", _COMMENT.sub("", statement))
    text = _SPACE.sub(" ", _NUMBER.sub("?", text)).strip()
    return _LIST.sub("(?, …)", text)


def walk(node: Plan) -> Iterator[Plan]:
    """Yield a node of a plan and all below it."""
    yield node
    for part in node.get("Plans", ()):
        yield from walk(part)


def list_findings(plan: Plan, table_rows: Mapping[str, int]) -> list[PlanFinding]:
    """Return what reads too much; `table_rows`: rows of each table before the load."""
    found = []
    for node in walk(plan):
        kept, removed = rows_of(node)
        table = node.get("Relation Name", "")
        read = kept + removed
        is_big = table_rows.get(table, 0) > BIG_TABLE_ROWS
        if node["Node Type"] == "Seq Scan":
            if is_big or read > MOST_SCANNED_ROWS * node.get("Actual Loops", 0):
                found.append(PlanFinding(SCAN, f"{table}: {read:,.0f} rows"))
        elif is_big and _is_unconditional(node) and read > LEAST_SHARE_WHOLE * table_rows[table]:
            found.append(PlanFinding(WHOLE, f"{table}: {read:,.0f} rows"))
        elif removed > MOST_DISCARDED_ROWS and kept < LEAST_SHARE_KEPT * read:
            place = " by ".join(filter(None, (table, node.get("Index Name"))))
            text = f"{place or node['Node Type']}: {kept:,.0f} of {read:,.0f} rows"
            found.append(PlanFinding(DISCARDED, text))
        if node["Node Type"] in ("Sort", "Incremental Sort"):
            is_on_disk = node.get("Sort Space Type") == "Disk"
            if kept > MOST_SORTED_ROWS or is_on_disk:
                place = " on disk" if is_on_disk else ""
                found.append(PlanFinding(SORT, f"{kept:,.0f} rows{place}"))
    return list(dict.fromkeys(found))


def _is_unconditional(node: Plan) -> bool:
    return node["Node Type"] in ("Index Scan", "Index Only Scan") and "Index Cond" not in node


def rows_of(node: Plan) -> tuple[float, float]:
    """Return the rows that a node returned and those that it removed, of all loops."""
    loops = node.get("Actual Loops", 0)
    removed = sum(node.get(f"Rows Removed by {name}", 0) for name in ("Filter", "Index Recheck"))
    return loops * node.get("Actual Rows", 0), loops * removed


def result_rows(plan: Plan) -> float:
    """Return the rows of a statement: those returned, or those written without RETURNING."""
    rows, _ = rows_of(plan)
    if not rows and plan["Node Type"] == "ModifyTable" and plan.get("Plans"):
        rows, _ = rows_of(plan["Plans"][0])
    return rows


def count_blocks(plan: Plan) -> int:
    """Return the blocks that a statement read, each time that it read one."""
    return int(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0))


def render(plan: Plan, depth: int = 0) -> list[str]:
    """Return a plan as lines: each node with its rows, loops, and blocks."""
    lines = ["  " * depth + _render_node(plan)]
    for part in plan.get("Plans", ()):
        lines += render(part, depth + 1)
    return lines


def _render_node(node: Plan) -> str:
    name = node["Node Type"]
    if name == "ModifyTable":
        name = node.get("Operation", name)
    elif node.get("Join Type") not in (None, "Inner"):
        name = f"{name} ({node['Join Type']})"
    title = f"{node['Subplan Name']}: {name}" if "Subplan Name" in node else name
    if "Index Name" in node:
        title += f" using {node['Index Name']}"
    if place := node.get("Relation Name") or node.get("CTE Name"):
        title += f" on {place.removeprefix('controlplane_')}"
    loops = node.get("Actual Loops", 0)
    if not loops:
        return f"{title} (never executed)"
    parts = [f"rows={node['Actual Rows']:g}", f"loops={loops:g}"]
    _, removed = rows_of(node)
    if removed:
        parts.append(f"removed={removed:g}")
    blocks = {
        "hit": "Shared Hit Blocks",
        "read": "Shared Read Blocks",
        "temp": "Temp Written Blocks",
    }
    parts += [f"{word}={node[key]}" for word, key in blocks.items() if node.get(key)]
    return f"{title} ({' '.join(parts)})"


def _merge(found: Iterable[StatementTotals]) -> list[StatementTotals]:
    """Add up statements that differ in the number of constants only."""
    by_text: dict[str, list[StatementTotals]] = defaultdict(list)
    for totals in found:
        by_text[totals.text].append(totals)
    return [
        StatementTotals(
            text,
            {key for one in same for key in one.query_ids},
            sum(one.calls for one in same),
            sum(one.milliseconds for one in same),
        )
        for text, same in by_text.items()
    ]
