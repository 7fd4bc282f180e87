"""What the tests of the commands of Slurm share: a stub of the API, and a submission."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.spec import parse_job
from slurm_commands.job_document import build_document
from slurm_commands.request import read_request
from tests.unit.client.stub_server import Api

SCRIPT = "#!/bin/sh\ntrue\n"

Submission = Callable[..., dict[str, Any]]


@pytest.fixture
def submission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submission:
    """A function from options and a script to the document of its job, which is a valid one."""
    monkeypatch.chdir(tmp_path)

    def build(*words: str, script: str = SCRIPT, environ: dict[str, str] | None = None) -> Any:
        request, _ = read_request(words, lambda: script, environ or {})
        document = build_document(request, "sbatch-1", environ or {})
        parse_job(document)
        return document

    return build


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    """A server that answers 404 until a test sets answers, and an environment that names it."""
    server = Api()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("CELLRUN_URL", server.url)
    monkeypatch.setenv("CELLRUN_TOKEN", "secret-token")
    yield server
    server.close()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """A function that runs the `main` of a command and returns its exit code, output and errors."""

    def run(main: Callable[[], None], *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["command", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run
