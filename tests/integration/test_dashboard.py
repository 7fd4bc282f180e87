"""Grafana's own types read the dashboard, and Prometheus its expressions; no server is needed."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.architecture.source import ROOT

TEXT = (ROOT / "deploy" / "grafana" / "cellrun.json").read_text()
DASHBOARD: dict[str, Any] = json.loads(TEXT)
DOCUMENTED = set(
    re.findall(r"^\| `(cellrun_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
)


def targets() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield from panel.get("targets", ())


def test_dashboard_names_documented_metrics_only() -> None:
    names = set(re.findall(r"\bcellrun_\w+", TEXT))
    assert len(names) > 15
    assert names <= DOCUMENTED


def test_types_of_grafana_read_the_dashboard_and_write_it_unchanged() -> None:
    register_default_plugins()
    read = Dashboard.from_json(json.loads(TEXT))
    assert json.loads(JSONEncoder().encode(read)) == DASHBOARD


def test_panels_have_their_own_places_numbers_and_queries() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    fields = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(fields)) == len(fields)
    assert max(x for x, _ in fields) == 23
    for panel in DASHBOARD["panels"]:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters)
        assert (panel["type"] == "row") == (not letters)


def test_prometheus_reads_each_expression(tmp_path: Path) -> None:
    exprs = [target["expr"].replace("$pool", ".*") for target in targets()]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert f"SUCCESS: {len(exprs)} rules found" in done.stdout, done.stderr
    assert len(exprs) > 20


def test_dashboard_has_a_variable_for_pools_and_one_for_the_data_source() -> None:
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == [
        "datasource",
        "pool",
    ]
    uids = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if panel.get("targets")}
    assert uids == {"${datasource}"}
