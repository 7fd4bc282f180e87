"""Inputs from addresses that a submitter named: whose fault it is when they do not come."""

import hashlib
import ipaddress
import json
from pathlib import Path

import pytest

from controlplane.contract.messages.orders import Input
from controlplane.contract.messages.reports import INPUT_CORRUPT
from controlplane.contract.states import FailureKind
from tests.conformance.kit import Kit
from tests.conformance.test_files import ROOT, ran
from tests.harness.web import Answer, Web
from workers.attempt.outcome import INPUTS
from workers.drivers.registry import make_driver

USER = (FailureKind.USER, INPUTS)
SYSTEM = (FailureKind.SYSTEM, INPUTS)


@pytest.fixture
def kit(real_kit: Kit, tmp_path: Path) -> Kit:
    """A kit whose cell fetches from this machine, and reads files below `shared`."""
    shared = tmp_path / "shared"
    shared.mkdir()
    real_kit.driver.close()
    config = real_kit.config(
        file_roots=(shared,),
        allowed_networks=(ipaddress.ip_network("127.0.0.0/8"),),
        max_files_bytes=1_000_000,
    )
    real_kit.driver = make_driver(config, real_kit.events, back_off=(0.05, 0.1))
    return real_kit


def named(path: str, url: str, sha256: str | None = None) -> Input:
    return Input(path, url, sha256, named=True)


def test_submitter_url_is_fetched(kit: Kit, web: Web, tmp_path: Path) -> None:
    web.files["/a"] = b"from the web\n"
    (tmp_path / "shared" / "b").write_bytes(b"from a file\n")
    inputs = (
        named("/in/a", f"{web.url}/a", hashlib.sha256(b"from the web\n").hexdigest()),
        named("/in/b", f"file://{tmp_path}/shared/b"),
    )
    ended = ran(kit, f"cat {ROOT}/in/a {ROOT}/in/b", inputs=inputs)
    assert kit.log(ended.uid) == "from the web\nfrom a file\n", ended


def test_missing_or_forbidden_input_is_a_user_failure_without_retry(
    kit: Kit, web: Web, tmp_path: Path
) -> None:
    web.files["/a"] = b"x"
    for url, sha256 in (
        (f"{web.url}/none?token=hush", None),
        (f"{web.url}/a?token=hush", "0" * 64),
        (f"file://{tmp_path}/shared/none", None),
        (f"file://{tmp_path}/cell/work", None),
        ("s3://bucket/x", None),
        ("nonsense://x", None),
    ):
        ended = ran(kit, "true", inputs=(named("/in/a", url, sha256),))
        assert (ended.failure_kind, ended.reason) == USER, (url, ended)
        assert ended.message is not None
        assert "hush" not in ended.message
        assert "tried" not in ended.message
        assert ended.started_at is None


def test_transient_input_error_is_retried(kit: Kit, web: Web) -> None:
    web.route = lambda request: Answer(503 if len(web.requests) < 3 else 200, b"at last\n")
    ended = ran(kit, f"cat {ROOT}/in/a", inputs=(named("/in/a", f"{web.url}/a"),))
    assert kit.log(ended.uid) == "at last\n"
    web.route = lambda request: Answer(503)
    ended = ran(kit, "true", inputs=(named("/in/a", f"{web.url}/a"),))
    assert (ended.failure_kind, ended.reason) == SYSTEM


def test_total_size_of_inputs_is_limited(kit: Kit, web: Web) -> None:
    web.files |= {"/a": b"x" * 600_000, "/b": b"y" * 600_000}
    one, two = named("/in/a", f"{web.url}/a"), named("/in/b", f"{web.url}/b")
    assert ran(kit, "true", inputs=(one,)).exit_code == 0
    ended = ran(kit, "true", inputs=(one, two))
    assert (ended.failure_kind, ended.reason) == USER, ended


def test_outputs_of_another_group_are_fetched_as_inputs(kit: Kit, web: Web, tmp_path: Path) -> None:
    (tmp_path / "shared" / "far").write_bytes(b"far\n")
    web.files["/near"] = b"near\n"
    far, near = hashlib.sha256(b"far\n").hexdigest(), hashlib.sha256(b"near\n").hexdigest()
    lines = [
        {"name": "0/model/a b", "url": f"{web.url}/near", "sha256": near, "named": False},
        {
            "name": "1/model",
            "url": f"file://{tmp_path}/shared/far",
            "sha256": far,
            "named": True,
        },
    ]
    web.files["/bundle"] = "\n".join(map(json.dumps, lines)).encode()
    inputs = (Input("/in", f"{web.url}/bundle", bundle=True),)
    ended = ran(kit, f"cd {ROOT}/in; cat '0/model/a b' 1/model", inputs=inputs)
    assert kit.log(ended.uid) == "near\nfar\n", ended
    web.files["/near"] = b"changed\n"
    ended = ran(kit, "true", inputs=inputs)
    assert (ended.failure_kind, ended.reason) == (FailureKind.SYSTEM, INPUT_CORRUPT)
