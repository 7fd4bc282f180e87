"""The wire: what is written is read back, what was tampered with refused, what is odd harmless."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.artifacts import path_of
from controlplane.contract.codec import MalformedMessage, clean_text
from controlplane.contract.messages import orders, reports
from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.states import FailureKind, Phase, TaskState
from controlplane.contract.wire import broker, envelope, keys, queues
from controlplane.contract.wire.sealing import BadSeal

KEY = b"k" * 32


def sealed(body: dict[str, Any], **changes: Any) -> str:
    head = {"cell": "a", "incarnation": "one", "seq": 4, **changes}
    return envelope.seal(KEY, body=body, **head)


def test_envelope_round_trips() -> None:
    message = envelope.parse(sealed({"type": "x"}))
    message.check(KEY)
    assert (message.cell, message.incarnation, message.seq) == ("a", "one", 4)
    assert message.content() == {"type": "x"}


SEAL = envelope.Seal(b"s" * 32, b"n" * 12)


def test_sealed_payload_is_read_with_its_key_only() -> None:
    text = sealed({"type": "x", "odd": "a\ud800"}, payload_seal=SEAL)
    assert "odd" not in text
    message = envelope.parse(text)
    message.check(KEY)
    assert message.content(SEAL.key) == {"type": "x", "odd": "a\ud800"}
    with pytest.raises(BadSeal):
        message.content(b"o" * 32)
    with pytest.raises(MalformedMessage):
        message.content()


@pytest.mark.parametrize("changes", [{"cell": "b"}, {"incarnation": "two"}, {"seq": 5}])
def test_sealed_payload_opens_in_its_own_envelope_only(changes: dict[str, Any]) -> None:
    moved = replace(envelope.parse(sealed({"type": "x"}, payload_seal=SEAL)), **changes)
    with pytest.raises(BadSeal):
        moved.content(SEAL.key)


@pytest.mark.parametrize("payload", ["sealed:", "sealed:é", "sealed:AAAA", "sealed:" + "A" * 64])
def test_malformed_sealed_payload_is_refused(payload: str) -> None:
    message = replace(envelope.parse(sealed({"type": "x"})), payload=payload)
    with pytest.raises(BadSeal):
        message.content(SEAL.key)


@pytest.mark.parametrize(
    "raw", ["", "null", "[]", "{", '{"v":1}', '{"v":99}', "[" * 10_000, "x" * ((1 << 20) + 1)]
)
def test_malformed_envelope_is_refused(raw: str) -> None:
    with pytest.raises(MalformedMessage):
        envelope.parse(raw)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused_as_an_envelope(raw: str) -> None:
    with contextlib.suppress(MalformedMessage):
        envelope.parse(raw)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ["uid", "seq", "state", "progress", "exit_code", "started_at", "gone", "usage", "held"]
KINDS = ["register", "heartbeat", "reports", "goodbye", "orders", "registered", "sync", "other"]


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_payload_is_parsed_or_refused_as_a_message(kind: str, rest: dict[str, Any]) -> None:
    for read in (reports.read_message, orders.read_order):
        with contextlib.suppress(MalformedMessage):
            read({**rest, "type": kind, "reports": [rest], "runs": [list(rest.values())]})


REPORT = reports.AttemptReport(
    uid="u",
    seq=7,
    state=TaskState.FAILED,
    phase=Phase.PULLING,
    progress=50,
    container_id="c",
    exit_code=-1,
    failure_kind=FailureKind.SYSTEM,
    reason="engine",
    message="m",
    result="r",
    result_truncated=True,
    usage={"peak": 1},
    addresses={"http": "10.0.0.1:49153"},
    started_at=1.5,
    finished_at=2.5,
    gone=True,
    never_created=True,
)


LIMIT = reports.RESULT_BYTES


@pytest.mark.parametrize("sign", ["é", "€", "😀"])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_result_is_cut_before_an_incomplete_character(sign: str, missing: int) -> None:
    whole = len(sign.encode())
    before = "x" * (LIMIT - whole + min(missing, whole - 1))
    content = (before + sign + "more").encode()
    assert reports.head_of_result(content) == (before, True)
    assert reports.head_of_result(content[: LIMIT + 1]) == (before, True)


def test_invalid_utf_8_in_a_result_is_replaced() -> None:
    assert reports.head_of_result(b"") == ("", False)
    assert reports.head_of_result(b"a\xffb\xf0\x9f") == ("a\ufffdb\ufffd", False)
    fits = b"x" * (LIMIT - 3) + "€".encode()
    assert reports.head_of_result(fits) == ("x" * (LIMIT - 3) + "€", False)
    assert reports.head_of_result(fits + b"!") == ("x" * (LIMIT - 3) + "€", True)
    assert reports.head_of_result(b"\xff" * (LIMIT + 1)) == ("\ufffd" * LIMIT, True)


@pytest.mark.parametrize(
    "message",
    [
        reports.Register({"cpu_millis": 1}, {"a": "b"}, ("t",), "p", ("d",), ("c",), {"v": "1"}),
        reports.Heartbeat((reports.HeldAttempt("u", TaskState.RUNNING),)),
        reports.Reports(3, (REPORT, reports.AttemptReport("v", 8, TaskState.RUNNING))),
        reports.Goodbye(60),
    ],
)
def test_message_from_a_cell_round_trips(message: reports.Message) -> None:
    assert reports.read_message(json.loads(json.dumps(message.body()))) == message


ODD: Any = [float("nan"), float("inf"), "a\x00b\ud800", {"\x00k": [1, None, True, "\udfff"]}]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("usage", {}), ("plugin_state", {"odd": [None, None, "ab?", {"k": [1, None, True, "?"]}]})],
)
def test_values_that_cannot_be_stored_do_not_lose_the_end_of_an_attempt(
    name: str, kept: dict[str, Any]
) -> None:
    body = REPORT.body() | {name: {"odd": ODD}}
    read = reports.AttemptReport.read(json.loads(json.dumps(body)))
    assert read.state is REPORT.state
    assert getattr(read, name) == kept


def test_usage_has_figures_only() -> None:
    good = {"cpu_seconds": 1.5, "memory_peak_mib": 0, "own": 7, "steps": {"pull": 0.25, "run": 3}}
    wrong: list[Any] = ["x", None, True, -1, -0.5, 1e308, 2**60, [1], {"a": 1}, float("nan")]
    for item in wrong:
        for usage in (
            good | {"memory_peak_mib": item},
            good | {"new": item},
            good | {"steps": {"pull": item}},
        ):
            body = json.loads(json.dumps(REPORT.body() | {"usage": usage}))
            read = dict(reports.AttemptReport.read(body).usage or {})
            steps = read.pop("steps")
            assert read.items() <= good.items()
            assert steps.items() <= good["steps"].items()  # type: ignore[attr-defined]
    for item in ("x", [1], 1, 1e308, None):
        body = REPORT.body() | {"usage": {**good, "steps": item}}
        assert "steps" not in (reports.AttemptReport.read(body).usage or {})
    body = REPORT.body() | {"usage": {"steps": {"run": 1e10}}}
    assert reports.AttemptReport.read(body).usage == {"steps": {}}


@pytest.mark.parametrize("name", ["usage", "plugin_state"])
@pytest.mark.parametrize(
    "value", [{"a": "x" * 70_000}, ["no object"], {"in": json.loads("[" * 99 + "]" * 99)}]
)
def test_oversized_field_is_dropped_from_a_report(name: str, value: Any) -> None:
    read = reports.AttemptReport.read(REPORT.body() | {name: value})
    assert getattr(read, name) is None
    assert (read.state, read.message) == (REPORT.state, REPORT.message)


def test_artifact_path_is_accepted_only_for_the_reporting_attempt() -> None:
    kept = {"name": "a b", "size": 1, "sha256": "0" * 64}
    own, elsewhere = path_of("u", "a b"), "s3://bucket/a"
    foreign = [path_of("v", "a b"), path_of("u", "c"), "/api/v1/store/results/1", "//host/a"]
    outputs = [{**kept, "uri": uri} for uri in (*foreign, own, elsewhere)]
    read = reports.AttemptReport.read(REPORT.body() | {"outputs": outputs})
    assert [item["uri"] for item in read.outputs or ()] == [own, elsewhere]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sha256": "0"},
        {"sha256": ""},
        {"sha256": "é" * 64},
        {"sha256": "0" * 40 + "\r\nX-Injected: 1"},
        {"size": -1},
        {"size": 2**50 + 1},
        {"name": "../other/model"},
        {"name": "a/../../b"},
        {"name": "/etc/passwd"},
        {"name": "a\nb"},
        {"name": ""},
    ],
)
def test_output_that_web_could_not_send_is_omitted(wrong: dict[str, Any]) -> None:
    """Name and checksum become a path of the store and a header of the response."""
    good = {"name": "a", "size": 0, "sha256": "0" * 64}
    outputs = []
    for item in ({**good, **wrong}, good):
        own = path_of("u", str(item["name"]))
        outputs += [{**item, "uri": own}, {**item, "uri": "s3://bucket/a"}]
    read = reports.AttemptReport.read(REPORT.body() | {"outputs": outputs})
    assert [dict(item) for item in read.outputs or ()] == outputs[2:]


SPEC = orders.GroupSpec(
    id=1,
    job_id=2,
    job_name="j",
    group="g",
    replicas=3,
    image="i",
    command=("a", "b"),
    entrypoint=("e",),
    env={"K": "v"},
    resources={"cpu_millis": 5},
    inputs=(orders.Input("/p", "http://x", "00", bundle=True),),
    timeout_seconds=1.5,
    exclusive=True,
    ports=("http",),
    health_check=HealthCheck(("true",), "http", "/up", 1.0, 2.0, 3, 4.0),
    idle_timeout_seconds=5.0,
    lifetime_seconds=6.0,
)
ORDERS = orders.Orders(
    (SPEC,), (orders.RunAttempt("u", 1, 9, 0, 1, 5.0),), (orders.StopAttempt("v", "why", 3.0),)
)


@pytest.mark.parametrize(
    "order",
    [
        ORDERS,
        orders.RegistrationResult("accepted", "why", 1.0, 30.0, 5.0, 9),
        orders.Sync(4, 3, 1.0, 30.0, 5.0, ORDERS, draw_anew=True),
    ],
)
def test_message_to_a_cell_round_trips(order: orders.Order) -> None:
    assert orders.read_order(json.loads(json.dumps(order.body()))) == order


def test_false_optional_flags_are_not_written() -> None:
    assert "never" not in reports.AttemptReport("v", 8, TaskState.RUNNING).body()
    assert "exclusive" not in orders.GroupSpec(1, 2, "j", "g", 3).body()


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    body = {**REPORT.body(), "colour": "blue"}
    assert reports.AttemptReport.read(body) == REPORT


def test_text_that_postgresql_cannot_store_is_made_storable() -> None:
    assert clean_text("a\x00b\ud800c") == "ab?c"


def test_instants_out_of_range_are_clamped() -> None:
    early, late = (
        reports.AttemptReport.read({**REPORT.body(), "started_at": at}) for at in (-5.0, 1e20)
    )
    assert early.started_at == 0.0
    assert late.started_at is not None
    assert late.started_at < 1e10


def test_key_round_trips_and_a_malformed_one_is_refused() -> None:
    assert keys.decode_key(keys.encode_key(KEY) + "\n") == KEY
    for text in ("", "short", "é", keys.encode_key(KEY)[:-8]):
        with pytest.raises(keys.MalformedKey):
            keys.decode_key(text)


def test_a_cell_always_uses_the_same_inbox() -> None:
    assert queues.inbox_queue("a") == queues.inbox_queue("a")
    assert {queues.inbox_queue(f"cell-{n}") for n in range(200)} == set(queues.INBOX_QUEUES)


def test_task_message_has_the_celery_format() -> None:
    message = json.loads(broker.task_message("q", "cell.orders", ["text"]))
    assert message["headers"]["task"] == "cell.orders"
    assert message["properties"]["delivery_info"]["routing_key"] == "q"
