"""Prometheus accepts the alert rules and the metrics: checked by its own promtool."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.domain.alerts import ALERTS
from controlplane.domain.metrics import METRICS
from tests.architecture.source import ROOT
from tests.architecture.test_docs import anchors

RULES = ROOT / "deploy" / "prometheus" / "cellrun.rules.yaml"
SCENES = Path(__file__).parent / "prometheus" / "rules.test.yaml"
RULE_LIST: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the rules: promtool finds them beside the file of the tests."""
    shutil.copy(RULES, tmp_path)
    return tmp_path


def test_promtool_accepts_the_rules() -> None:
    assert f"SUCCESS: {len(RULE_LIST)} rules found" in promtool("check", "rules", str(RULES))


def test_rules_fire_as_their_scenes_describe(folder: Path) -> None:
    shutil.copy(SCENES, folder)
    assert "SUCCESS" in promtool("test", "rules", str(folder / SCENES.name))


@pytest.mark.parametrize("kind", ALERTS)
def test_each_kind_of_alert_has_a_rule_that_fires_while_one_is_open(
    folder: Path, kind: str
) -> None:
    [rule] = [rule for rule in RULE_LIST if f'kind="{kind}"' in rule["expr"]]
    assert rule["alert"] == "Cellrun" + kind.title().replace("_", "")
    expected = {
        "exp_labels": {"job": "cellrun", "kind": kind, **rule["labels"]},
        "exp_annotations": rule["annotations"],
    }
    scene = {
        "rule_files": [RULES.name],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f'cellrun_alerts{{job="cellrun",kind="{kind}"}}', "values": "0 2 0"},
                ],
                "alert_rule_test": [
                    {"alertname": rule["alert"], "eval_time": at, "exp_alerts": alerts}
                    for at, alerts in (("0m", []), ("1m", [expected]), ("2m", []))
                ],
            }
        ],
    }
    path = folder / "scene.yaml"
    path.write_text(yaml.safe_dump(scene))
    promtool("test", "rules", str(path))


def test_a_scene_with_wrong_expectations_fails(folder: Path) -> None:
    """Promtool compares what it is given."""
    text = SCENES.read_text().replace("severity: critical", "severity: info", 1)
    (folder / SCENES.name).write_text(text)
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", str(folder / SCENES.name))


def test_each_rule_reads_documented_metrics_and_names_a_section_that_exists() -> None:
    for rule in RULE_LIST:
        named = set(re.findall(r"\bcellrun_\w+", rule["expr"]))
        assert named <= METRICS.keys(), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor in anchors(ROOT / page), rule["alert"]
