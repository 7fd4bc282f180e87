"""A cell is held to its place: it gets no work as long as it differs from its enrolment."""

import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError

from controlplane import clock
from controlplane.commands.cells.enrolment import EnrolmentChange, change_enrolment
from controlplane.commands.cells.operate import (
    cordon_cell,
    enroll_cell,
    revoke_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.commands.state.apply import apply
from controlplane.commands.tenancy.pools import put_pool
from controlplane.commands.tenancy.secrets import put_secret
from controlplane.contract.messages.reports import Goodbye, Heartbeat, Register
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import ChangeCell, Effects
from controlplane.domain.state.states import CellState
from controlplane.models import Alert, AuditLine, Cell, Project
from controlplane.queries.views.attempts import find_uploader
from controlplane.queries.views.cells import get_cell
from controlplane.spec import InvalidSpec
from tests.integration.loop.conftest import FakeCell, Loop

CAPACITY = {"cpu_millis": 4000, "memory_mib": 4096, "disk_mib": 10_000}
WRONG_POOL = "it reports pool secure, but is enrolled in pool default"


@pytest.fixture
def secure(loop: Loop) -> None:
    put_pool(name="secure", changes={})


def register(cell: FakeCell, **claims: Any) -> None:
    facts = {"capacity": CAPACITY, "drivers": ("docker",), "task_types": ("container",)}
    cell.send(Register(**{**facts, **claims}).body())


def found(name: str = "cell-1") -> Cell:
    return Cell.objects.select_related("pool").get(name=name)


def place_of(name: str = "cell-1") -> tuple[str, str]:
    return found(name).pool.name, found(name).state


def alerts() -> list[str]:
    open_ones = Alert.objects.filter(kind="cell_mismatch", cleared_at=None)
    return list(open_ones.values_list("subject", flat=True))


def change(**changed: Any) -> None:
    change_enrolment(name="cell-1", change=EnrolmentChange(**changed), actor="op", now=clock.now())


def test_cell_cannot_attract_tasks_of_another_pool_and_their_secrets(
    loop: Loop, secure: None
) -> None:
    """It names another pool, the labels of its cells, and endless capacity."""
    put_secret(
        project_id=Project.objects.get().pk,
        name="pci-key",
        value=b"x",
        writer=loop.owner,
        now=clock.now(),
    )
    hostile = FakeCell(loop, "cell-9", CAPACITY)
    register(
        hostile,
        pool="secure",
        labels={"trusted": "yes", "zone": "pci"},
        capacity={"cpu_millis": 100_000_000, "memory_mib": 10_000_000, "disk_mib": 10_000_000},
    )
    job = loop.submit(
        pool="secure",
        constraints=[{"key": "trusted", "op": "eq", "values": ["yes"]}],
        secrets=[{"name": "pci-key", "env": "KEY"}],
        allow_unsatisfiable=True,
    )
    loop.place()
    assert loop.attempts(job) == []
    assert hostile.run_orders() == []
    assert place_of("cell-9") == ("default", "CORDONED")
    loop.submit()
    loop.place()
    assert hostile.run_orders() == []

    genuine = FakeCell(loop, "cell-1", CAPACITY, pool="secure")
    register(genuine, labels={"trusted": "yes"})
    loop.place()
    [attempt] = loop.attempts(job)
    assert genuine.run_orders() == [str(attempt.uid)]
    uploader = find_uploader("cell-9", attempt.uid)
    assert uploader is not None
    assert not uploader.owns_attempt


def test_cell_without_a_pool_in_its_settings_is_in_that_of_its_enrolment(
    loop: Loop, secure: None
) -> None:
    cell = FakeCell(loop, "cell-1", CAPACITY, pool="secure")
    register(cell)
    assert place_of() == ("secure", "READY")
    register(cell, pool="secure")
    assert place_of() == ("secure", "READY")
    assert alerts() == []


@pytest.mark.parametrize("pool", ["secure", "missing"])
def test_cell_that_reports_another_pool_is_cordoned_until_it_agrees(
    loop: Loop, secure: None, pool: str
) -> None:
    cell = loop.cell()
    register(cell, pool=pool)
    text = WRONG_POOL.replace("secure", pool)
    assert place_of() == ("default", "CORDONED")
    assert found().state_reason == f"it differs from its enrolment: {text}"
    assert get_cell("cell-1")["mismatch"] == text
    assert text in Alert.objects.get(kind="cell_mismatch").text
    with pytest.raises(Conflict, match=f"gets no work: .*pool {pool}"):
        uncordon_cell(name="cell-1", actor="op", now=clock.now())
    register(cell, pool="default")
    assert place_of() == ("default", "READY")
    assert (found().mismatch, alerts()) == ("", [])


def test_reason_follows_the_last_registration(loop: Loop, secure: None) -> None:
    cell = loop.cell()
    register(cell, pool="secure")
    register(cell, pool="third")
    assert found().state_reason.endswith("it reports pool third, but is enrolled in pool default")


def test_running_attempt_of_a_cell_that_differs_continues(loop: Loop, secure: None) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    register(cell, pool="secure")
    loop.converge()
    assert loop.states(job) == ["ASSIGNED"]
    assert cell.beat(attempt).orders.stops == ()


def test_move_by_an_operator_ends_the_mismatch(loop: Loop, secure: None) -> None:
    cell = loop.cell()
    register(cell, pool="secure")
    job = loop.submit(pool="secure", allow_unsatisfiable=True)
    change(pool="secure")
    assert place_of() == ("secure", "READY")
    assert found().state_reason == "its enrolment was changed by op"
    assert alerts() == []
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]
    line = AuditLine.objects.get(action="change.cell")
    assert (line.actor, line.subject) == ("op", "cell cell-1")
    assert (line.before, line.after) == ({"pool": "default"}, {"pool": "secure"})


def test_move_away_from_the_settings_of_a_cell_cordons_it(loop: Loop, secure: None) -> None:
    cell = loop.cell()
    register(cell, pool="default")
    change(pool="secure")
    assert place_of() == ("secure", "CORDONED")
    assert alerts() == ["cell-1"]
    change(pool="default")
    assert place_of() == ("default", "READY")


def test_cell_moves_itself_into_a_pool_that_cells_may_join(loop: Loop, secure: None) -> None:
    put_pool(name="secure", changes={"cells_may_join": True})
    cell = loop.cell()
    register(cell, pool="secure")
    assert place_of() == ("secure", "READY")
    register(cell, pool="default")
    assert place_of() == ("secure", "CORDONED")


def test_protected_labels_are_those_of_the_operator(loop: Loop) -> None:
    enroll_cell(name="cell-1", node_labels={"node/zone": "a"}, now=clock.now())
    cell = FakeCell(loop, "cell-1", CAPACITY)
    register(cell, labels={"disk": "ssd"})
    assert found().labels == {"disk": "ssd", "node/zone": "a"}
    register(cell, labels={"disk": "ssd", "node/zone": "a"})
    assert place_of() == ("default", "READY")
    register(cell, labels={"node/zone": "b", "node/trusted": "yes"})
    assert found().labels == {"node/zone": "a"}
    assert place_of() == ("default", "CORDONED")
    change(node_labels={"node/zone": "b", "node/trusted": "yes"})
    assert found().labels == {"node/zone": "b", "node/trusted": "yes"}
    assert place_of() == ("default", "READY")


def test_constraint_on_a_protected_label_is_met_by_the_operators_label_only(loop: Loop) -> None:
    cell = loop.cell()
    register(cell, labels={"node/trusted": "yes"})
    job = loop.submit(
        constraints=[{"key": "node/trusted", "op": "exists"}], allow_unsatisfiable=True
    )
    loop.place()
    assert loop.states(job) == ["PENDING"]
    change(node_labels={"node/trusted": "yes"})
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]


def test_capacity_is_limited_by_the_ceiling_of_the_row(loop: Loop) -> None:
    enroll_cell(name="cell-1", max_capacity={"cpu_millis": 2000}, now=clock.now())
    cell = FakeCell(loop, "cell-1", CAPACITY)
    register(cell)
    assert found().capacity == {**CAPACITY, "cpu_millis": 2000}
    assert place_of() == ("default", "CORDONED")
    change(max_capacity={"cpu_millis": 8000})
    assert found().capacity == CAPACITY
    assert place_of() == ("default", "READY")
    change(max_capacity={"cpu_millis": 1000})
    assert found().capacity == {**CAPACITY, "cpu_millis": 1000}
    assert place_of() == ("default", "CORDONED")
    register(cell, capacity={**CAPACITY, "cpu_millis": 1000})
    assert place_of() == ("default", "READY")


def test_cell_chooses_its_tags_unless_operators_fix_them(loop: Loop) -> None:
    cell = loop.cell()
    register(cell, tags=("quiet", "ssd?"))
    assert (found().tags, place_of()) == (["quiet", "ssd?"], ("default", "READY"))
    change(fixed_tags=["quiet"])
    assert (found().tags, place_of()) == (["quiet"], ("default", "CORDONED"))
    assert found().mismatch == "it reports the tags quiet, ssd?, but is enrolled with quiet"
    change(fixed_tags=["ssd?", "quiet"])
    assert (sorted(found().tags), place_of()) == (["quiet", "ssd?"], ("default", "READY"))
    change(fixed_tags=[])
    assert (found().tags, place_of()) == ([], ("default", "CORDONED"))
    assert found().mismatch == "it reports the tags quiet, ssd?, but is enrolled without tags"
    register(cell)
    assert place_of() == ("default", "READY")
    register(cell, tags=("other",))
    assert (found().tags, place_of()) == ([], ("default", "CORDONED"))
    change(fixed_tags=["*"])
    assert (found().tags, place_of()) == (["other"], ("default", "READY"))


def test_fixed_tags_count_for_a_cell_that_reports_none(loop: Loop) -> None:
    enroll_cell(name="cell-1", fixed_tags=["pci"], now=clock.now())
    assert found().tags == ["pci"]
    change(fixed_tags=["quiet"])
    assert (found().tags, found().mismatch) == (["quiet"], "")
    change(fixed_tags=["pci"])
    register(FakeCell(loop, "cell-1", CAPACITY))
    assert (found().tags, place_of()) == (["pci"], ("default", "READY"))


def test_cell_cannot_attract_tasks_with_a_tag_that_is_not_its_own(loop: Loop) -> None:
    enroll_cell(name="cell-9", fixed_tags=[], now=clock.now())
    hostile = FakeCell(loop, "cell-9", CAPACITY)
    register(hostile, tags=("pci?",))
    job = loop.submit(placement_tags=["pci"], allow_unsatisfiable=True)
    loop.place()
    assert hostile.run_orders() == []
    enroll_cell(name="cell-1", fixed_tags=["pci"], now=clock.now())
    genuine = FakeCell(loop, "cell-1", CAPACITY)
    register(genuine)
    loop.place()
    [attempt] = loop.attempts(job)
    assert genuine.run_orders() == [str(attempt.uid)]


def test_cell_that_differs_is_cordoned_after_a_quarantine_and_a_goodbye(
    loop: Loop, secure: None
) -> None:
    cell = loop.cell()
    register(cell, pool="secure")
    reason = found().state_reason
    quarantine = ChangeCell(found().pk, frozenset(CellState), CellState.QUARANTINED, "x")
    apply(Effects(cells=[quarantine]), now=clock.now())
    unquarantine_cell(name="cell-1", actor="op", now=clock.now())
    assert (place_of(), found().state_reason) == (("default", "CORDONED"), reason)
    cell.send(Goodbye(0).body())
    cell.send(Heartbeat(()).body())
    assert place_of() == ("default", "CORDONED")
    with pytest.raises(IntegrityError, match="cell_ready_agrees"):
        Cell.objects.update(state="READY")


def test_order_of_an_operator_outlasts_the_mismatch(loop: Loop, secure: None) -> None:
    cell = loop.cell()
    cordon_cell(name="cell-1", actor="op", now=clock.now())
    register(cell, pool="secure")
    assert found().state_reason == "cordoned by op"
    assert alerts() == ["cell-1"]
    register(cell)
    assert (found().state, alerts()) == ("CORDONED", [])
    uncordon_cell(name="cell-1", actor="op", now=clock.now())
    assert found().state == "READY"


def test_alert_of_a_revoked_cell_is_closed(loop: Loop, secure: None) -> None:
    register(loop.cell(), pool="secure")
    revoke_cell(name="cell-1", actor="op", now=clock.now())
    assert alerts() == []


def test_cell_from_before_the_upgrade_keeps_its_labels_and_capacity(loop: Loop) -> None:
    """Its row has no claims until it registers again."""
    loop.cell()
    labels = {"zone": "a", "node/zone": "x"}
    Cell.objects.update(claims={}, labels=labels, tags=["quiet"])
    change(node_labels={"node/zone": "b"})
    assert found().labels == {"zone": "a", "node/zone": "b"}
    assert (found().capacity, found().tags) == (CAPACITY, ["quiet"])
    assert place_of() == ("default", "READY")


def test_change_that_changes_nothing_leaves_no_trace(loop: Loop) -> None:
    loop.cell()
    change(pool="default", node_labels={}, max_capacity={}, fixed_tags=["*"])
    change()
    assert not AuditLine.objects.filter(action="change.cell").exists()


def test_change_of_a_missing_cell_or_into_a_missing_pool_is_refused(loop: Loop) -> None:
    with pytest.raises(NotFound):
        change(pool="default")
    loop.cell()
    with pytest.raises(InvalidSpec, match="there is no pool third"):
        change(pool="third", node_labels={"node/zone": "b"})
    assert found().node_labels == {}


@pytest.mark.parametrize(
    "name", ["*", "cell-?", "a b", "../a", "Cell", "a\nACL SETUSER b on", "-a", "", "x" * 64, "ä"]
)
@pytest.mark.parametrize("command", ["enroll_cell", "enroll_cells"])
def test_name_that_no_cell_can_have_is_not_enrolled(
    loop: Loop, tmp_path: Path, name: str, command: str
) -> None:
    """Its users at Redis could reach the queues of other cells, and its key file other folders."""
    before = Cell.objects.count()
    words = [str(tmp_path / "keys")] if command == "enroll_cells" else []
    with pytest.raises(CommandError, match="is not the name of a cell"):
        call_command(command, *words, "--", name)
    assert Cell.objects.count() == before
    assert [path.name for path in tmp_path.rglob("*")] == ["keys"] * len(words)


def test_key_file_of_a_cell_is_private_whatever_it_was(loop: Loop, tmp_path: Path) -> None:
    file = tmp_path / "cell-9"
    file.touch()
    file.chmod(0o666)
    call_command("enroll_cells", str(tmp_path), "cell-9")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_command_enrolls_with_labels_and_a_ceiling(loop: Loop, secure: None) -> None:
    options = ["--pool", "secure", "--label", "node/zone=a", "--label", "node/row=1"]
    ceiling = ["--max-capacity", "cpu=1.5,memory=2Gi,gpu=2,licence=3", "--tags", "quiet, ssd?"]
    for _ in range(2):  # the same values again are no contradiction
        call_command("enroll_cell", "cell-1", *options, *ceiling, stdout=StringIO())
    call_command("enroll_cell", "cell-1", stdout=StringIO())
    cell = found()
    assert cell.pool.name == "secure"
    assert cell.node_labels == {"node/zone": "a", "node/row": "1"}
    assert cell.max_capacity == {"cpu_millis": 1500, "memory_mib": 2048, "gpu": 2, "licence": 3}
    assert cell.fixed_tags == ["quiet", "ssd?"]
    for other in (
        ["--pool", "default"],
        ["--label", "node/zone=b"],
        ["--max-capacity", "cpu=9"],
        ["--tags", ""],
    ):
        with pytest.raises(CommandError, match="enrolled with other values"):
            call_command("enroll_cell", "cell-1", *other, stdout=StringIO())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--label", "zone=a"], "must begin with node/"),
        (["--label", "node/zone"], "is not NAME=VALUE"),
        (["--max-capacity", "cpu"], "is not NAME=VALUE"),
        (["--max-capacity", "cpu=many"], "cpu"),
        (["--pool", "third"], "there is no pool"),
        (["--tags", "a b"], "--tags"),
        (["--tags", "a,a?"], "a is named twice"),
        (["--tags", "*,a"], "must be the only element"),
    ],
)
def test_command_refuses_invalid_options(loop: Loop, words: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("enroll_cell", "cell-1", *words, stdout=StringIO())
    assert not Cell.objects.exists()
