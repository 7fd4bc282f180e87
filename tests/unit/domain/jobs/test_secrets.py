"""What a secret is bound to, and which values are logins."""

import pytest

from controlplane.contract.messages.launch_context import Registry
from controlplane.domain.cells.sealing import NONCE_BYTES, NotOpened, rest_key, seal, unseal
from controlplane.domain.jobs.secrets import about_secret, read_registry, registry_value

KEY, NONCE = rest_key("k" * 40), b"n" * NONCE_BYTES


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"v" * 65536])
def test_sealed_value_opens_only_with_the_same_key_and_context(value: bytes) -> None:
    about = about_secret(7, "token")
    sealed = seal(KEY, value, about=about, nonce=NONCE)
    assert unseal(KEY, sealed, about=about) == value
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, found, context in (
        (rest_key("k" * 41), sealed, about),
        (KEY, changed, about),
        (KEY, sealed[:20], about),
        (KEY, b"", about),
        (KEY, sealed, about_secret(8, "token")),
        (KEY, sealed, about_secret(7, "token2")),
    ):
        with pytest.raises(NotOpened):
            unseal(key, found, about=context)


def test_secret_contexts_of_projects_and_names_are_distinct() -> None:
    assert about_secret(1, "1.a") != about_secret(11, "a")


def test_registry_login_round_trips() -> None:
    login = Registry("ann é", 'p"a\\ss\n', "registry.example.com:5000")
    assert read_registry(registry_value(login)) == login


def test_registry_login_without_a_server_is_for_docker_hub() -> None:
    login = read_registry(b' {"password": "b", "username": "a"}\n')
    assert login == Registry("a", "b", "docker.io")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[" * 65536,
        b"7",
        b"null",
        b'["username", "password"]',
        b'{"username": "a"}',
        b'{"username": "a", "password": 7}',
        b'{"username": null, "password": "b"}',
        b'{"username": "a", "password": "b", "more": 1}',
        b'{"username": "a", "password": "b", "server": null}',
        b'{"username": "a", "server": "docker.io"}',
    ],
)
def test_malformed_registry_login_is_rejected(value: bytes) -> None:
    assert read_registry(value) is None
