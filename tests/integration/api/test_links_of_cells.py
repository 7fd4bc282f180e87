"""A link in an order is useful to a cell that runs the work, for as long as it does."""

from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.commands.cells.rotation import complete_rotation, rotate_key
from controlplane.contract.states import TaskState
from controlplane.contract.wire import keys
from controlplane.domain.cells.keys import CellAddress
from controlplane.models import Attempt, Cell, Task, TaskGroup
from controlplane.queries.attempts.group_specs import links_at, load_group_specs
from controlplane.queries.cells.keys import key_of
from tests.integration.api.conftest import Caller
from tests.integration.api.links import use_link
from tests.integration.api.test_reading import place, submit


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def link(submitter: Caller, cell: Cell) -> str:
    """The link to the input of a task that the cell runs, as its order has it."""
    submit(submitter, inputs=[{"path": "/in", "content": "an input"}])
    place(Task.objects.get(), cell)
    (spec,) = load_group_specs([TaskGroup.objects.get().pk]).read.values()
    assert use_link(spec.inputs[0].url, cell).content == b"an input"
    return spec.inputs[0].url


def test_link_is_useless_without_the_signature_of_a_cell(anonymous: Caller, link: str) -> None:
    parts = urlsplit(link)
    path = f"{parts.path.removeprefix('/api/v1')}?{parts.query}"
    assert anonymous.get(path).status == 401


def test_link_is_useless_to_a_cell_without_an_attempt_of_the_group(
    make_cell: Callable[..., Cell], link: str
) -> None:
    assert use_link(link, make_cell("cell-2")).status == 401


def test_link_ends_with_the_release_of_the_attempt(cell: Cell, link: str) -> None:
    now = clock.now()
    ended = {"finished_at": now, "released_at": now, "release_kind": "confirmed"}
    Attempt.objects.update(state=TaskState.FAILED, **ended)
    assert use_link(link, cell).status == 401


@pytest.mark.parametrize("end", ["revoked", "renewed"])
def test_link_ends_with_the_key_of_the_cell(cell: Cell, link: str, end: str) -> None:
    key = key_of(cell)
    if end == "revoked":
        revoke_cell(name=cell.name, actor="op", now=clock.now())
    else:
        enroll_cell(name=cell.name, renew=True, actor="op", now=clock.now())
    assert use_link(link, cell, key=key).status == 401


def test_link_opens_with_either_key_of_a_rotation(cell: Cell, link: str) -> None:
    key, now = key_of(cell), clock.now()
    text, _ = rotate_key(name=cell.name, until=now + timedelta(days=1), actor="op", now=now)
    following = keys.decode_key(text)
    assert use_link(link, cell, key=key).status == use_link(link, cell, key=following).status == 200
    complete_rotation(CellAddress(cell.pk, cell.name, "i", following), now=now)
    assert use_link(link, cell, key=following).status == 200
    assert use_link(link, cell, key=key).status == 401


@pytest.mark.parametrize("change", ["group", "no group", "path", "expired"])
def test_changed_link_is_invalid(submitter: Caller, cell: Cell, link: str, change: str) -> None:
    submit(submitter, name="other")
    other = Task.objects.latest("pk")
    place(other, cell)
    group = TaskGroup.objects.earliest("pk").pk
    path = urlsplit(link).path
    changed = {
        "group": link.replace(f"group={group}&", f"group={other.group_id}&"),
        "no group": link.replace(f"group={group}&", ""),
        "path": link.replace(path, f"/api/v1/store/results/{group}"),
        "expired": links_at(clock.now() - timedelta(days=2))(group, path),
    }[change]
    assert changed != link
    assert use_link(changed, cell).status == 403
