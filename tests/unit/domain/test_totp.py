"""Codes of a second factor: the values of RFC 6238, the window, and the form of typed codes."""

import base64

import pytest

from controlplane.domain.totp import (
    find_step,
    is_totp,
    normalize_code,
    provisioning_uri,
    readable_key,
    recovery_code,
    recovery_digest,
)

KEY = b"12345678901234567890"
"""Of RFC 6238, appendix B, whose codes have eight digits: the last six are these."""


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
def test_codes_of_the_standard_are_valid(now: int, code: str) -> None:
    assert find_step(KEY, code, now=now) == now // 30


@pytest.mark.parametrize(
    ("now", "is_valid"), [(1199, False), (1200, True), (1259, True), (1289, True), (1290, False)]
)
def test_a_code_is_valid_for_a_step_before_and_after_its_own(now: int, is_valid: bool) -> None:
    code = code_of_step(41)  # 1230 to 1260
    assert (find_step(KEY, code, now=now) == 41) == is_valid


def code_of_step(step: int) -> str:
    return next(
        f"{number:06}"
        for number in range(1_000_000)
        if find_step(KEY, f"{number:06}", now=step * 30) == step
    )


@pytest.mark.parametrize("code", ["", "28708", "2870822", "28708a", "２87082", "é", "\0"])
def test_other_texts_are_no_codes(code: str) -> None:
    assert not is_totp(code)
    assert find_step(KEY, code, now=59) is None


@pytest.mark.parametrize("typed", ["287 082", " 287082\n", "287-082"])
def test_typed_codes_may_have_spaces_and_hyphens(typed: str) -> None:
    assert normalize_code(typed) == "287082"


def test_recovery_codes_are_readable_and_have_one_digest() -> None:
    code = recovery_code(bytes(range(10)))
    assert code == "aaaq-eaye-auda-ocaj"
    assert recovery_digest(code) == recovery_digest(code.upper().replace("-", " "))
    assert recovery_digest(code) != recovery_digest(recovery_code(bytes(10)))


def test_the_address_for_apps_has_the_key_and_the_names() -> None:
    uri = provisioning_uri(KEY, account="user-1", issuer="Cellrun")
    assert uri.startswith("otpauth://totp/Cellrun:user-1?")
    assert f"secret={base64.b32encode(KEY).decode()}" in uri
    assert readable_key(KEY).replace(" ", "") == base64.b32encode(KEY).decode()
