"""What of its hosts a pool lets tasks have: table, and for any paths."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.messages.task_options import (
    HARMLESS_CAPABILITIES,
    USUAL_CAPABILITIES,
)
from controlplane.domain.jobs.host_policy import find_policy_faults
from controlplane.spec import parse_job
from controlplane.spec.parsing import field_path

ALLOWED: list[dict[str, Any]] = [
    {"path": "/data", "read_only": True},
    {"path": "/data/scratch/", "read_only": False},
    {"path": "/models"},
]


def faults(
    *,
    allowed: Sequence[Mapping[str, Any]] = ALLOWED,
    privileged: bool = False,
    allowed_capabilities: Sequence[str] = (),
    **group: Any,
) -> dict[str, str]:
    spec = parse_job({"name": "a", "image": "busybox", **group})
    found = find_policy_faults(
        spec,
        pool="gpu",
        allowed_mounts=allowed,
        privileged_allowed=privileged,
        allowed_capabilities=allowed_capabilities,
    )
    return {field_path(place, is_short=True): text for place, text in found}


def mount(source: str, *, read_only: bool = True) -> dict[str, Any]:
    return {"mounts": [{"source": source, "target": "/in", "read_only": read_only}]}


@pytest.mark.parametrize(
    ("source", "read_only"),
    [
        ("/data", True),
        ("/data/", True),
        ("/data/a/b", True),
        ("/data/scratch", False),
        ("/data/scratch/x", False),
        ("/models/x", True),
    ],
)
def test_mount_of_an_allowed_path_or_below_is_accepted(source: str, read_only: bool) -> None:
    assert faults(**mount(source, read_only=read_only)) == {}


@pytest.mark.parametrize("source", ["/", "/dat", "/data2", "/etc", "/scratch", "/Data"])
def test_mount_of_another_path_is_refused_with_the_allowed_paths(source: str) -> None:
    assert faults(**mount(source)) == {
        "mounts[0].source": f"pool gpu allows no mount of {source};"
        " it allows /data (read only), /data/scratch/, /models (read only)"
    }
    expected = f"pool gpu allows no mount of {source}; it allows none"
    assert faults(allowed=[], **mount(source)) == {"mounts[0].source": expected}
    assert faults(allowed=[{"path": "/"}], **mount(source)) == {}


@pytest.mark.parametrize("source", ["/data", "/data/scratch2", "/models"])
def test_read_only_path_cannot_be_mounted_writable(source: str) -> None:
    text = f"pool gpu allows {source} to be read only: must be true"
    assert faults(**mount(source, read_only=False)) == {"mounts[0].read_only": text}


def test_fault_names_the_field_as_written() -> None:
    spec = parse_job(
        {
            "name": "a",
            "groups": [
                {"name": "x", "image": "busybox"},
                {"name": "y", "image": "busybox", "privileged": True},
            ],
        }
    )
    [finding] = find_policy_faults(spec, pool="p", allowed_mounts=[], privileged_allowed=False)
    assert finding == (("groups", 1, "privileged"), "pool p allows no privileged tasks")


def test_dangerous_capabilities_need_a_pool_that_allows_privileged_tasks() -> None:
    harmless = ["AUDIT_WRITE", "CAP_MKNOD", "SETFCAP", "SETPCAP", "CHOWN", "CAP_KILL"]
    assert faults(capabilities=harmless) == {}
    found = faults(capabilities=["MKNOD", "SYS_ADMIN", "ALL", "NET_RAW", "CAP_NET_RAW"])
    assert list(found) == [f"capabilities[{position}]" for position in (1, 2, 3, 4)]
    assert found["capabilities[3]"] == (
        "pool gpu allows no privileged tasks, and so of capabilities only AUDIT_WRITE, MKNOD,"
        " SETFCAP, SETPCAP"
    )
    assert faults(capabilities=["SYS_ADMIN", "ALL", "NET_RAW"], privileged=True) == {}


def test_pool_may_allow_single_capabilities() -> None:
    wanted = {"capabilities": ["NET_RAW", "CAP_NET_RAW", "SYS_PTRACE"]}
    found = faults(allowed_capabilities=["NET_RAW"], **wanted)
    assert list(found) == ["capabilities[2]"]
    assert "only AUDIT_WRITE, MKNOD, NET_RAW, SETFCAP, SETPCAP" in found["capabilities[2]"]
    assert faults(allowed_capabilities=["NET_RAW", "SYS_PTRACE"], **wanted) == {}


def test_capabilities_of_every_task_are_those_of_the_kubernetes_baseline() -> None:
    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
    baseline = (
        "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID"
        " SETPCAP SETUID SYS_CHROOT"
    )
    assert {*HARMLESS_CAPABILITIES, *USUAL_CAPABILITIES} == set(baseline.split())


def test_harmless_and_default_capabilities_are_disjoint() -> None:
    assert not HARMLESS_CAPABILITIES.intersection(USUAL_CAPABILITIES)


parts = st.lists(st.sampled_from(["a", "b", "ab", "..."]), min_size=1, max_size=4)


@given(allowed=parts, source=parts, slashes=st.integers(0, 2))
def test_only_paths_below_an_allowed_path_are_accepted(
    allowed: list[str], source: list[str], slashes: int
) -> None:
    path = "/" + "/".join(allowed) + "/" * slashes
    found = faults(allowed=[{"path": path}], **mount("/" + "/".join(source)))
    assert (found == {}) == (source[: len(allowed)] == allowed)
