"""While the stack starts, it names what is not ready, and why."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from controlplane.config.stack.readiness import wait_until_ready
from tests.harness.deployed import make_plan
from tests.harness.web import Answer, Request, Web


class Shown(Exception):
    """The line that is printed."""


def show(text: str) -> None:
    raise Shown(text)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ({"state": "LOST", "incarnation": None}, "not registered yet"),
        ({"state": "LOST", "incarnation": "one"}, "LOST"),
        (None, "not enrolled"),
    ],
    ids=["new", "lost", "unknown"],
)
def test_line_names_the_state_of_a_cell_that_is_not_ready(
    tmp_path: Path, cell: dict[str, str | None] | None, reason: str
) -> None:
    cells = [{"name": "cell-1", **cell}] if cell else []

    def answer(request: Request) -> Answer:
        return Answer(200, json.dumps({"results": cells}).encode())

    with Web() as server:
        server.route = answer
        port = urlsplit(server.url).port
        assert port is not None
        plan = replace(make_plan(tmp_path), web_port=port, flower_port=port)
        with pytest.raises(Shown, match=rf"^waiting for cell-1 \({reason}\)$"):
            wait_until_ready(plan, [], show, lambda: None)
