"""A user at every endpoint that shows pending reasons, and an installed validator that fails."""

import gc
import json
import re
import sys
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner

from cellrun.cli import app
from controlplane import clock, plugins
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Task
from tests.scenarios.stage import Stage


class Onlooker:
    """A user who requests the pending reason at every endpoint."""

    def __init__(self, stage: Stage, url: str) -> None:
        self._token = create_api_token(
            user=stage.owner, name="test", role=Role.SUBMITTER, now=clock.now()
        )
        self._environ = {"CELLRUN_URL": url, "CELLRUN_TOKEN": self._token}
        self._browser = Client()
        self._browser.force_login(User.objects.create_superuser("olga", password="x"))

    def call(self, path: str) -> Any:
        """What the API answers."""
        headers = {"Authorization": f"Bearer {self._token}"}
        return json.loads(Client().get(f"/api/v1{path}", headers=headers).content)

    def command(self, *words: str) -> str:
        """What the command prints."""
        done = CliRunner().invoke(app, list(words), env=self._environ)
        assert done.exit_code == 0, done.output
        return done.stdout

    def page(self, address: str) -> str:
        """What the admin shows."""
        return unescape(self._browser.get(f"/admin/controlplane/{address}").content.decode())

    def reason(self, task: Task) -> dict[str, Any]:
        """Return the reason of a pending task; check that all endpoints agree."""
        [listed] = [
            item
            for item in self.call(f"/jobs/{task.job_id}/tasks")["results"]
            if item["id"] == task.pk
        ]
        reason: dict[str, Any] = listed["pending_reason"]
        explained = self.call(f"/tasks/{task.pk}/explain")
        assert (explained["state"], explained["reason"]) == ("PENDING", reason)
        text = reason["text"]
        assert explained["text"] == text
        assert text in self.command("explain", "--task", str(task.pk))
        assert self.call(f"/tasks/{task.pk}")["pending_reason"] == reason
        assert text in self.command("job", str(task.job_id))
        assert text in self.page(f"task/{task.pk}/change/")
        for address in (f"job/{task.job_id}/change/", "task/"):
            assert any(text in row for row in self.rows_of(task, address)), address
        return reason

    def rows_of(self, task: Task, address: str) -> list[str]:
        """The lines of the admin's tables that link to the page of a task."""
        lines = re.findall("<tr.*?</tr>", self.page(address), flags=re.DOTALL)
        return [line for line in lines if f"/task/{task.pk}/change/" in line]


@pytest.fixture
def onlooker(stage: Stage, live_server: LiveServer, tmp_path: Path) -> Iterator[Onlooker]:
    # Connections that a browser of an earlier test left open have threads, too.
    others = set(threading.enumerate())
    yield Onlooker(stage, live_server.url)
    gc.collect()
    for thread in set(threading.enumerate()) - others:
        if "process_request_thread" in thread.name:
            thread.join(timeout=10)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a validator that fails is installed, as pip would leave it."""
    (tmp_path / "broken_validator.py").write_text(
        "class Broken:\n    def check(self, request):\n        raise RuntimeError('no luck')\n"
    )
    folder = tmp_path / "broken_validator-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[cellrun.validators]\nbroken = broken_validator:Broken\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    yield
    monkeypatch.undo()
    plugins.forget()
    sys.modules.pop("broken_validator", None)
