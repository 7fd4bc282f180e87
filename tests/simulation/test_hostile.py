"""The forgeries of the simulation are what they claim: each fails for its own fault."""

from typing import Any

import pytest

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.orders import read_order
from controlplane.contract.messages.reports import read_message
from tests.simulation.hostile import UNTYPED_BODIES, WRONG_BODIES, WRONG_ORDERS


@pytest.mark.parametrize("body", UNTYPED_BODIES, ids=str)
def test_untyped_body_is_no_message(body: dict[str, Any]) -> None:
    for read in (read_message, read_order):
        with pytest.raises(MalformedMessage, match="unknown message type"):
            read(body)


@pytest.mark.parametrize("body", WRONG_BODIES, ids=str)
def test_report_of_a_known_type_fails_for_a_field(body: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        read_message(body)
    assert "unknown message type" not in str(refusal.value)


@pytest.mark.parametrize("body", WRONG_ORDERS, ids=str)
def test_order_of_a_known_type_fails_for_a_field(body: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        read_order(body)
    assert "unknown message type" not in str(refusal.value)
