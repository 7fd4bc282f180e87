"""`validate`, `confirm-loss`, `completion`, and the token of operators."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import a_cell, a_pool
from tests.unit.client.stub_server import Api


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=typed)


def test_job_is_validated_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CELLRUN_URL", raising=False)
    good = call("validate", "-", "--set", "replicas=3", typed="name: x\nimage: busybox")
    assert (good.exit_code, good.stdout) == (0, "-: job x is valid (1 group, 3 tasks)\n")
    document = "name: x\nimag: busybox\nreplicas: 0"
    wrong = call("validate", "-", typed=document)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "imag: unknown field; did you mean image?" in wrong.stderr
    assert "replicas: must be at least 1" in wrong.stderr
    listed = call("validate", "-", "-o", "json", typed=document)
    assert listed.exit_code == 2
    assert {fault["field"] for fault in json.loads(listed.stdout)} == {"imag", "replicas"}


def test_loss_is_confirmed_after_a_confirmation(environment: Api) -> None:
    environment.answer("GET /api/v1/pools/gpu", a_pool(name="gpu"))
    environment.answer("POST /api/v1/pools/gpu/confirm-loss", a_pool(name="gpu"))
    assert call("confirm-loss", "gpu", typed="n\n").exit_code == 1
    assert [name for name, *_ in environment.requests] == ["GET /api/v1/pools/gpu"]
    done = call("confirm-loss", "gpu", "--yes")
    assert done.stdout == "the loss of the silent cells of pool gpu is confirmed\n"
    assert call("confirm-loss", "none", "--yes").exit_code == 2


def test_orders_use_the_operators_token_and_reads_do_not(
    environment: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_OPERATOR_TOKEN", "op-token")
    environment.answer("GET /api/v1/cells/cell-1", a_cell())
    environment.answer("POST /api/v1/cells/cell-1/cordon", a_cell(state="CORDONED"))
    call("cells", "cell-1")
    call("cordon", "cell-1")
    tokens = [headers["Authorization"] for _, _, headers, _ in environment.requests]
    assert tokens == ["Bearer secret-token", "Bearer op-token"]


def test_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    script = call("completion", "bash")
    assert script.exit_code == 0
    assert "_CELLRUN_COMPLETE=complete_bash" in script.stdout
    completed = CliRunner().invoke(
        app,
        [],
        prog_name="cellrun",
        env={
            "_CELLRUN_COMPLETE": "complete_bash",
            "COMP_WORDS": "cellrun sta",
            "COMP_CWORD": "1",
        },
    )
    assert completed.stdout.split() == ["status"]


def test_wrong_command_suggests_the_right_one() -> None:
    assert "Did you mean 'status'?" in call("stauts").stderr
