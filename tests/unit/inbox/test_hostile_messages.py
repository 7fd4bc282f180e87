"""Any bytes that arrive as a message cost themselves and nothing else, on both sides.

Both sides are entered as the processes enter them: the inbox by `sort_messages`, a cell by
`OrderReader.read`.
"""

import contextlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.orders import (
    GroupSpec,
    Input,
    Orders,
    RegistrationResult,
    RunAttempt,
    StopAttempt,
    Sync,
)
from controlplane.contract.messages.reports import (
    MAX_HELD,
    MAX_NAMES,
    MAX_REPORTS,
    MAX_RESOURCES,
    Goodbye,
    Heartbeat,
    HeldAttempt,
    Register,
)
from controlplane.contract.states import TaskState
from controlplane.contract.wire import envelope, keys
from controlplane.contract.wire.queues import INBOX_QUEUES, inbox_queue
from controlplane.domain.cells.probes import Probe
from controlplane.inbox.sorting import COUNTED_CHARS, MAX_OF_A_CELL, Directory, sort_messages
from controlplane.queries.cells.keys import write_probe
from tests.harness.hostile import BODIES, wrong_values
from workers.agent.orders import OrderReader

CELL_KEY = b"k" * 32
TO_CONTROL = keys.mac_key(CELL_KEY, keys.TO_CONTROL)
TO_CELL = keys.mac_key(CELL_KEY, keys.TO_CELL)
BEAT = Heartbeat((HeldAttempt("u", TaskState.RUNNING),)).body()
REGISTERED = RegistrationResult("accepted", "", 1.0, 30.0, 5.0, 1).body()

# What JSON can hold, and what Python's reader takes beyond it: NaN, lone surrogates, huge numbers.
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**4000)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=80)
    | st.just("\u00e9" * 64)
    | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
DEEP = "[" * 100_000


def find(names: Iterable[str]) -> dict[str, tuple[int, dict[bytes, str]]]:
    return {name: (ord(name), {CELL_KEY: "salt"}) for name in names if name in ("a", "b")}


def seal(body: dict[str, Any], seq: int = 4, cell: str = "a", key: bytes = TO_CONTROL) -> str:
    return envelope.seal(key, cell=cell, incarnation="one", seq=seq, body=body)


def reader() -> OrderReader:
    return OrderReader(name="a", key=CELL_KEY, incarnation=lambda: "one")


def check_both(raw: str) -> None:
    """`raw` is dropped by both sides, and what comes with it is read."""
    with contextlib.suppress(MalformedMessage):
        envelope.parse(raw)
    found = sort_messages([raw, seal(BEAT)], Directory(find))
    assert [beat.seq for beat in found.beats] == [4]
    assert found.dropped.total() <= 1
    assert not found.dropped["unreadable"]
    orders = reader()
    orders.read(raw)
    assert not orders.dropped["unreadable"]


def with_surrogates(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_any_text_affects_no_other_message(raw: str) -> None:
    check_both(raw)


@given(values, st.sampled_from([json.dumps, with_surrogates]))
def test_any_json_value_affects_no_other_message(value: Any, write: Any) -> None:
    check_both(write(value))


@given(st.sampled_from(["v", "cell", "inc", "seq", "mac", "payload"]), values)
def test_any_value_in_an_envelope_field_affects_no_other_message(name: str, value: Any) -> None:
    head = {**json.loads(seal(BEAT, seq=5)), name: value}
    check_both(json.dumps(head))


@pytest.mark.parametrize(
    "mac", ["\u00e9", "\u00e9" * 64, "\ud800" * 64, "0" * 63, "0" * 65, "A" * 64]
)
def test_a_mac_that_is_not_64_hex_digits_is_malformed(mac: str) -> None:
    raw = json.dumps({**json.loads(seal(BEAT)), "mac": mac})
    with pytest.raises(MalformedMessage):
        envelope.parse(raw)
    assert sort_messages([raw], Directory(find)).dropped == {"malformed": 1}
    orders = reader()
    assert orders.read(raw) is None
    assert orders.dropped == {"malformed": 1}


@pytest.mark.parametrize("mac", ["\u00e9" * 64, "\ud800", ""])
def test_mac_comparison_accepts_any_text(mac: str) -> None:
    assert not keys.is_signed(CELL_KEY, "text", mac)


@pytest.mark.parametrize("raw", [DEEP, '{"a":' * 100_000, "9" * 5_000, "\ud800", "\x00", "\xff"])
def test_text_that_breaks_parsers_affects_no_other_message(raw: str) -> None:
    check_both(raw)


FIELDS = ["held", "unfit", "clock", "capacity", "labels", "tags", "after", "reports", "runs"]
FIELDS += ["stops", "specs", "orders", "verdict", "server_time", "expected_seconds", "inventory"]
KINDS = ["register", "heartbeat", "reports", "goodbye", "orders", "registered", "sync"]


# The first texts of a process are slow: Hypothesis reads the table of all characters.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), values))
def test_any_signed_payload_affects_no_other_message(kind: str, rest: dict[str, Any]) -> None:
    body = {"type": kind, **rest}
    found = sort_messages([seal(body), seal(BEAT, cell="b")], Directory(find))
    assert [beat.address.name for beat in found.beats][-1] == "b"
    assert not found.dropped["unreadable"]
    orders = reader()
    orders.read(seal(body, key=TO_CELL))
    assert not orders.dropped["unreadable"]


@pytest.mark.parametrize("kind", BODIES)
def test_wrong_value_in_a_signed_message_affects_no_other_message(kind: str) -> None:
    """As the enrolled sender of either side may write it."""
    for body in wrong_values(BODIES[kind]):
        found = sort_messages([seal(body), seal(BEAT, cell="b")], Directory(find))
        assert [beat.address.name for beat in found.beats][-1] == "b", body
        assert not found.dropped["unreadable"], body


ORDERS = Orders(
    (GroupSpec(1, 2, "j", "g", 3, env={"K": "v"}, inputs=(Input("/p", "http://x"),)),),
    (RunAttempt("u", 1, 9, 0, 1, 5.0),),
    (StopAttempt("v", "why", 3.0),),
)


@pytest.mark.parametrize(
    "order",
    [
        ORDERS,
        Sync(4, 3, 1.0, 30.0, 5.0, ORDERS),
        RegistrationResult("accepted", "", 1.0, 30.0, 5.0, 1),
    ],
    ids=["orders", "sync", "registered"],
)
def test_wrong_value_in_a_signed_order_is_malformed(order: Any) -> None:
    orders = reader()
    for body in wrong_values(order.body()):
        orders.read(seal(body, key=TO_CELL))
    assert set(orders.dropped) == {"malformed"}


@given(st.lists(values, min_size=4, max_size=6))
def test_any_list_as_an_order_is_readable_or_malformed(item: list[Any]) -> None:
    orders = reader()
    orders.read(seal({"type": "orders", "runs": [item], "stops": [item]}, key=TO_CELL))
    assert not orders.dropped["unreadable"]


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_instant_too_large_for_a_float_is_malformed(number: int) -> None:
    orders = reader()
    for body in ({"runs": [["u", 1, 2, 3, 4, number]]}, {"stops": [["u", "why", number, False]]}):
        assert orders.read(seal({"type": "orders", **body}, key=TO_CELL)) is None
    assert orders.dropped == {"malformed": 2}


@pytest.mark.parametrize("name", ["cell", "inc", "seq", "payload", "mac"])
def test_a_message_that_was_tampered_with_is_dropped(name: str) -> None:
    raw = json.loads(seal(BEAT))
    raw[name] = {"cell": "b", "seq": 5, "mac": "0" * 64}.get(
        name, raw[name][:-1] + " " if isinstance(raw[name], str) else None
    )
    found = sort_messages([json.dumps(raw)], Directory(find))
    assert (found.dropped, found.beats) == ({"bad_mac": 1}, [])
    signed = json.loads(seal(REGISTERED, key=TO_CELL))
    orders = reader()
    assert orders.read(json.dumps({**signed, "mac": "0" * 64})) is None
    assert orders.dropped == {"bad_mac": 1}


def test_a_message_of_the_other_direction_is_dropped() -> None:
    assert sort_messages([seal(BEAT, key=TO_CELL)], Directory(find)).dropped == {"bad_mac": 1}
    orders = reader()
    assert orders.read(seal(REGISTERED, key=TO_CONTROL)) is None
    assert orders.read(seal(REGISTERED, key=TO_CELL)) is not None
    assert orders.dropped == {"bad_mac": 1}


def test_message_with_too_many_reports_is_malformed() -> None:
    report = {"uid": "u", "seq": 1, "state": 3}
    body = {"type": "reports", "after": 0, "reports": [report] * MAX_REPORTS}
    assert len(sort_messages([seal(body)], Directory(find)).reported) == MAX_REPORTS
    body["reports"] = [report] * (MAX_REPORTS + 1)
    found = sort_messages([seal(body)], Directory(find))
    assert (found.reported, found.dropped) == ([], {"malformed": 1})


HELD = ["u", int(TaskState.RUNNING)]
NAMES = {str(number): "x" for number in range(MAX_NAMES)}
LONG_LISTS = {
    "heartbeat.held": ("heartbeat", {"held": [HELD] * MAX_HELD}),
    "register.inventory": ("register", {"capacity": {}, "inventory": [HELD] * MAX_HELD}),
    "register.labels": ("register", {"capacity": {}, "labels": NAMES}),
    "register.versions": ("register", {"capacity": {}, "versions": NAMES}),
    "register.capacity": ("register", {"capacity": dict.fromkeys(list(NAMES)[:MAX_RESOURCES], 1)}),
    "register.tags": ("register", {"capacity": {}, "tags": [*NAMES]}),
    "register.drivers": ("register", {"capacity": {}, "drivers": [*NAMES]}),
    "register.task_types": ("register", {"capacity": {}, "task_types": [*NAMES]}),
}


@pytest.mark.parametrize("name", LONG_LISTS)
def test_message_with_too_many_items_is_malformed(name: str) -> None:
    """A message of the largest size would otherwise keep the inbox busy for a second."""
    kind, fields = LONG_LISTS[name]
    body = {"type": kind, **fields}
    assert not sort_messages([seal(body)], Directory(find)).dropped
    items = fields[name.partition(".")[2]]
    if isinstance(items, dict):
        items["one more"] = next(iter(items.values()))
    else:
        items.append(items[0])
    try:
        assert sort_messages([seal(body)], Directory(find)).dropped == {"malformed": 1}
    finally:
        items.pop(*(["one more"] if isinstance(items, dict) else []))


def test_batch_takes_fewer_messages_of_a_cell_if_they_are_long() -> None:
    """The inbox decodes all that a batch takes, so the share of a cell is one of work."""
    empty = {"type": "reports", "after": 0, "reports": [], "other": "x" * 9 * COUNTED_CHARS}
    long = [seal(empty, seq) for seq in range(MAX_OF_A_CELL)]
    short = {"type": "reports", "after": 0, "reports": [{"uid": "u", "seq": 1, "state": 3}]}
    found = sort_messages([*long, seal(short, 7, "b")], Directory(find))
    assert found.dropped == {"over_limit": MAX_OF_A_CELL - MAX_OF_A_CELL // 10}
    assert [report.sender.cell_id for report in found.reported] == [ord("b")]


def test_probe_counts_only_for_its_own_shard() -> None:
    probe = Probe(3, datetime(2031, 5, 4, 12, tzinfo=UTC))
    text = write_probe(3, sent_at=probe.sent_at)
    for shard, queue in enumerate(INBOX_QUEUES):
        found = sort_messages([text], Directory(find), [queue])
        assert found.probes == ([probe] if shard == 3 else [])
        assert found.dropped == ({} if shard == 3 else {"wrong_shard": 1})


def test_long_message_counts_as_several_for_its_cell() -> None:
    long = {"type": "heartbeat", "held": [], "other": "x" * 10 * COUNTED_CHARS}
    found = sort_messages([seal(long), seal(BEAT, cell="b")], Directory(find))
    assert found.counts == {(ord("a"), "a"): 11, (ord("b"), "b"): 1}
    assert [beat.address.name for beat in found.beats] == ["a", "b"]


def test_message_of_an_unknown_cell_is_dropped() -> None:
    assert sort_messages([seal(BEAT, cell="z")], Directory(find)).dropped == {"unknown_cell": 1}


def test_a_cell_is_read_only_from_its_own_shard() -> None:
    own = inbox_queue("a")
    for queue in INBOX_QUEUES:
        found = sort_messages([seal(BEAT)], Directory(find), [queue])
        assert len(found.beats) == (queue == own)
        assert found.dropped == ({} if queue == own else {"wrong_shard": 1})
        assert len(found.counts) == (queue == own)  # a foreign shard is no proof of a sender


def test_batch_takes_a_limited_share_per_cell_with_the_newest_heartbeat() -> None:
    first = [seal({"type": "reports", "after": 0, "reports": []}, seq) for seq in range(300)]
    beats = [seal(BEAT, 300 + seq) for seq in range(150)]
    other = [seal(BEAT, 7, "b"), seal({"type": "reports", "after": 0, "reports": []}, 8, "b")]
    found = sort_messages([*first, *beats, *other], Directory(find))
    assert [(beat.address.name, beat.seq) for beat in found.beats] == [("a", 449), ("b", 7)]
    assert found.dropped == {"over_limit": 450 - MAX_OF_A_CELL}
    assert found.counts == {(ord("a"), "a"): 450, (ord("b"), "b"): 2}


def test_only_the_newest_registrations_and_goodbyes_of_a_cell_are_read() -> None:
    register = Register({"cpu_millis": 1}).body()
    raw = [seal(register, seq) for seq in range(50)]
    raw += [seal(Goodbye(5).body(), seq) for seq in range(50, 90)]
    raw += [
        envelope.seal(TO_CONTROL, cell="a", incarnation=f"i{n}", seq=n, body=register)
        for n in range(9)
    ]
    found = sort_messages([*raw, seal(register, 3, "b")], Directory(find))
    got = [(item.address.name, item.address.incarnation, item.seq) for item in found.registrations]
    assert got == [("a", "i7", 7), ("a", "i8", 8), ("b", "one", 3)]
    assert [item.seq for item in found.goodbyes] == [89]
    assert found.dropped == {"over_limit": 57 + 39}


def test_messages_without_a_valid_mac_count_against_no_cell() -> None:
    forged = json.dumps({**json.loads(seal(BEAT)), "mac": "0" * 64})
    found = sort_messages([forged] * 400 + [seal(BEAT)], Directory(find))
    assert found.counts == {(ord("a"), "a"): 1}
    assert (len(found.beats), found.dropped) == (1, {"bad_mac": 400})
