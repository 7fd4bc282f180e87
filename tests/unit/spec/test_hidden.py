"""What would be hidden or lost in mounts and rooms in memory is refused."""

from typing import Any

import pytest

from controlplane.spec import InvalidSpec, parse_job

MOUNT = {"mounts": [{"source": "/srv/data", "target": "/data", "read_only": False}]}
ROOM = {"tmpfs": [{"path": "/fast/", "size": "8Mi"}]}


def faults(**group: Any) -> dict[str, str]:
    try:
        parse_job({"name": "a", "image": "busybox", **group})
    except InvalidSpec as refused:
        return {fault.field: fault.detail for fault in refused.faults}
    return {}


@pytest.mark.parametrize(
    ("group", "field", "words"),
    [
        ({**MOUNT, "inputs": [{"path": "/data/a", "content": ""}]}, "inputs[0].path", "mount"),
        ({**MOUNT, "secrets": [{"name": "x", "path": "/data/k"}]}, "secrets[0].path", "mount"),
        ({**MOUNT, "tmpfs": [{"path": "/data/fast"}]}, "tmpfs[0].path", "mount"),
        ({**MOUNT, "checkpoint_path": "/data"}, "checkpoint_path", "mount at /data"),
        ({**MOUNT, "checkpoint_path": "/data/x"}, "checkpoint_path", "mount at /data"),
        ({**ROOM, "inputs": [{"path": "/fast/a", "content": ""}]}, "inputs[0].path", "empty"),
        ({**ROOM, "outputs": [{"path": "/fast/a"}]}, "outputs[0].path", "deleted at the end"),
        ({**ROOM, "outputs": [{"path": "/fast"}]}, "outputs[0].path", "deleted at the end"),
        ({**ROOM, "checkpoint_path": "/fast/x"}, "checkpoint_path", "deleted at the end"),
        ({**ROOM, "result_file": "/fast/result"}, "result_file", "tmpfs at /fast/, which is"),
        ({"tmpfs": [{"path": "/out"}]}, "result_file", "tmpfs at /out, which is deleted"),
    ],
)
def test_path_hidden_by_a_mount_or_lost_in_a_tmpfs_is_refused(
    group: dict[str, Any], field: str, words: str
) -> None:
    found = faults(**group)
    assert list(found) == [field]
    assert words in found[field]


def test_mount_inside_another_mount_is_refused() -> None:
    mounts = [{"source": "/srv/a", "target": "/data"}, {"source": "/srv/b", "target": "/data/b"}]
    assert list(faults(mounts=mounts)) == ["mounts[1].target"]


def test_path_outside_mounts_and_tmpfs_is_accepted() -> None:
    own = {"result_file": "/data/result", "outputs": [{"path": "/data/table"}]}
    assert faults(**MOUNT, **own) == {}
    secret = {"secrets": [{"name": "x", "path": "/fast/key"}]}
    inputs = {"inputs": [{"path": "/faster/x", "content": ""}]}
    assert faults(**ROOM, **secret, **inputs) == {}
