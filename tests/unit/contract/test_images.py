"""The registry of an image is found as engines find it, so a login reaches no other one."""

import pytest

from controlplane.contract.images import normalize_registry, registry_of

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("busybox", "docker.io"),
        ("busybox:1", "docker.io"),
        (f"busybox@{DIGEST}", "docker.io"),
        ("team/tool", "docker.io"),
        ("team/tool:5000", "docker.io"),
        ("docker.io/team/tool", "docker.io"),
        ("index.docker.io/team/tool", "docker.io"),
        ("registry.example.com/tool", "registry.example.com"),
        ("Registry.Example.com/tool", "registry.example.com"),
        ("registry.example.com:5000/team/tool:1", "registry.example.com:5000"),
        ("registry:5000/tool", "registry:5000"),
        ("registry.example.com:443/tool", "registry.example.com:443"),
        ("localhost/tool", "localhost"),
        ("127.0.0.1:5000/tool", "127.0.0.1:5000"),
        ("[::1]:5000/tool", "[::1]:5000"),
        ("docker.io.example.com/tool", "docker.io.example.com"),
        ("REGISTRY/tool", "registry"),
    ],
)
def test_registry_is_the_host_in_the_name_or_docker_hub(image: str, registry: str) -> None:
    assert registry_of(image) == registry
    assert normalize_registry(registry) == registry
