"""A signed link opens one path until it expires, and nothing else."""

from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.domain.cells.signed_links import VALID_SECONDS, is_link_valid, link_key, sign_link

KEY = link_key("only-for-tests-" * 4)


def is_valid(link: str, *, at: float, key: bytes = KEY) -> bool:
    parts = urlsplit(link)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return is_link_valid(
        key, parts.path, expires=query["expires"], signature=query["signature"], at=at
    )


def test_a_link_is_valid_until_it_expires() -> None:
    link = sign_link(KEY, "/store/x", expires=1000)
    assert is_valid(link, at=1000)
    assert not is_valid(link, at=1000.5)


@pytest.mark.parametrize(
    ("old", "new"),
    [("/x", "/y"), ("expires=1000", "expires=9000")],
)
def test_changed_link_is_refused(old: str, new: str) -> None:
    link = sign_link(KEY, "/store/x", expires=1000).replace(old, new)
    assert not is_valid(link, at=1)


@pytest.mark.parametrize("expires", ["", "x", "-1", "1e9", "9" * 13, "١"])
def test_a_malformed_expiry_is_refused(expires: str) -> None:
    assert not is_link_valid(KEY, "/x", expires=expires, signature="0" * 64, at=0)


def test_link_is_refused_with_the_key_of_another_installation() -> None:
    link = sign_link(KEY, "/store/x", expires=1000)
    assert not is_valid(link, at=1, key=link_key("another-one-for-tests-" * 4))
    assert not is_link_valid(KEY, "/store/x", expires="1000", signature="é", at=1)


def test_link_is_valid_for_one_day() -> None:
    assert VALID_SECONDS == 86_400


def test_expiry_has_at_most_twelve_digits() -> None:
    for expires, taken in ((10**12 - 1, True), (10**12, False)):
        assert is_valid(sign_link(KEY, "/x", expires=expires), at=1) is taken
