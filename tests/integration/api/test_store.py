"""What signed links open: by which keys, and not gathered in memory first."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane import clock
from controlplane.api.agents.store import StreamedLines
from controlplane.contract.states import TaskState
from controlplane.models import Cell, Task
from controlplane.queries.attempts.artifacts import iterate_outputs
from controlplane.queries.attempts.group_specs import links_at, links_of_group
from controlplane.storage import folder
from tests.integration.api.conftest import Caller
from tests.integration.api.links import use_link
from tests.integration.api.test_artifacts import report_outputs
from tests.integration.api.test_reading import place, submit


def test_group_outputs_are_read_in_pages(
    monkeypatch: pytest.MonkeyPatch,
    django_assert_num_queries: Any,
    submitter: Caller,
    make_cell: Callable[..., Cell],
) -> None:
    monkeypatch.setattr("controlplane.queries.attempts.artifacts._OUTPUTS_PAGE", 2)
    submit(submitter, replicas=5)
    cell = make_cell()
    for task in Task.objects.order_by("index"):
        report_outputs(place(task, cell), model=b"x")
    Task.objects.update(state=TaskState.SUCCEEDED, finished_at=clock.now())
    group_id = Task.objects.all()[0].group_id
    lines = iterate_outputs(group_id, "model", links_of_group(group_id, clock.now()))
    with django_assert_num_queries(2):
        found = [next(lines), next(lines)]
    with django_assert_num_queries(2):
        found += lines
    assert [json.loads(line)["name"] for line in found] == [f"{n}/model" for n in range(5)]


def test_streamed_lines_are_not_buffered() -> None:
    taken: list[int] = []

    def lines() -> Iterator[bytes]:
        for number in range(1_000):
            taken.append(number)
            yield b"x\n"

    async def read() -> tuple[bytes, int]:
        parts = aiter(StreamedLines(lines()))
        first = await anext(parts)
        so_far = len(taken)
        return first + b"".join([part async for part in parts]), so_far

    whole, so_far = asyncio.run(read())
    assert whole == b"x\n" * 1_000
    assert 0 < so_far < 100


@pytest.mark.parametrize("what", ["input", "results"])
def test_link_signed_with_a_fallback_key_is_valid(
    settings: Any, submitter: Caller, make_cell: Callable[..., Cell], what: str
) -> None:
    submit(submitter)
    cell = make_cell()
    place(Task.objects.get(), cell)
    group_id, digest = Task.objects.get().group_id, folder.put_input(b"x")
    paths = {"input": f"inputs/{digest}", "results": f"results/{group_id}"}
    link = links_at(clock.now())(group_id, f"/api/v1/store/{paths[what]}")
    former, settings.SECRET_KEY = settings.SECRET_KEY, "n" * 50
    assert use_link(link, cell).status == 403
    settings.SECRET_KEY_FALLBACKS = ["o" * 50, former]
    assert use_link(link, cell).status == 200
