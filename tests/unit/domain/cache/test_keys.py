"""Keys of the cache: stable, different for different tasks, and evenly spread."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.artifacts import prefix_of
from controlplane.domain.cache.keys import (
    NoKey,
    derive_key,
    digest_of_files,
    given_key,
    identity_of,
)
from controlplane.domain.jobs.launch import launch_of
from controlplane.spec import parse_job

TRAIN: dict[str, Any] = {
    "image": "registry.example.org:5000/train@sha256:" + "a" * 64,
    "command": ["python", "train.py", "--epochs", "3"],
    "env": {"SEED": "7", "LANG": "C"},
    "inputs": [
        {"path": "/in/config", "content": "lr: 0.1\n"},
        {"path": "/in/data", "url": "https://example.org/data", "sha256": "b" * 64},
    ],
    "outputs": [{"path": "/out/model"}],
}
# The keys of rule 1. A change of these requires a new number of the rule.
GOLDEN = {
    "true": "auto-1-4386fc6fd5cfb844c269fa5f2e578227f99f77e9c967002334590a6faee639f5",
    "train": "auto-1-c0593ec52ed27e4f120435cfa4988d1f4d153c29c69ad640f677451751b3085e",
    "part 3 of 10": "auto-1-28d9ea9b90d8dc38459117b11b051d3a3ab0f2cd25801cc61d70a2abe42ba3cc",
    "after a group": "auto-1-38944d4e33f53d993c09ffab00c983cd79551a3780abef697ade7cacceba4e12",
}


def key_of(
    definition: dict[str, Any],
    *,
    index: int = 0,
    replicas: int = 1,
    version: str = "1",
    digests: dict[int, str] | None = None,
) -> str:
    spec = parse_job({"name": "a", "image": "busybox:1", **definition})
    launch, _ = launch_of(spec.groups[0], exclusive=False)
    # As the row of the group keeps it.
    launch = json.loads(json.dumps(launch))
    return derive_key(
        launch, index=index, replicas=replicas, version=version, digests=digests or {}
    )


def golden_keys() -> dict[str, str]:
    launch = {"image": "x", "inputs": [{"path": "/in", "from_group": "a"}]}
    after = derive_key(launch, index=0, replicas=1, version="1", digests={0: "c" * 64})
    return {
        "true": key_of({"command": ["true"]}),
        "train": key_of(TRAIN),
        "part 3 of 10": key_of(TRAIN, index=3, replicas=10),
        "after a group": after,
    }


def test_keys_are_those_of_the_rule() -> None:
    assert golden_keys() == GOLDEN


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_keys_do_not_depend_on_the_hash_seed(seed: str) -> None:
    program = (
        "import json; from tests.unit.domain.cache.test_keys import golden_keys;"
        "print(json.dumps(golden_keys()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == GOLDEN


@given(st.permutations(sorted(TRAIN)), st.permutations(["SEED", "LANG"]))
def test_keys_do_not_depend_on_the_order_of_mappings(fields: list[str], names: list[str]) -> None:
    env = {name: TRAIN["env"][name] for name in names}
    assert key_of({name: env if name == "env" else TRAIN[name] for name in fields}) == key_of(TRAIN)


_WORDS = st.text("ab\0 \"',[]{}:\\", max_size=4)
_DEFINITIONS = st.fixed_dictionaries(
    {
        "image": st.sampled_from(["x", "x:1", "y"]),
        "command": st.lists(_WORDS, max_size=3),
        "env": st.dictionaries(st.sampled_from("AB"), _WORDS, max_size=2),
        "user": st.sampled_from([None, "1", "1:1"]),
        "inputs": st.lists(
            st.fixed_dictionaries(
                {"path": st.sampled_from(["/a", "/b"]), "sha256": st.sampled_from(["c", "d"])}
            ),
            max_size=2,
        ),
        "index": st.integers(0, 2),
        "replicas": st.integers(1, 3),
        "version": st.sampled_from("12"),
    }
)


def derived(definition: dict[str, Any]) -> str:
    launch = dict(definition)
    named = {name: launch.pop(name) for name in ("index", "replicas", "version")}
    return derive_key(launch, digests={}, **named)


@given(_DEFINITIONS, _DEFINITIONS)
def test_different_definitions_have_different_keys(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert (derived(one) == derived(other)) == (one == other)


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "image": lambda task: {**task, "image": task["image"].replace("a" * 64, "a" * 63 + "b")},
    "a word": lambda task: {**task, "command": [*task["command"][:-1], "4"]},
    "words split": lambda task: {**task, "command": ["python train.py", "--epochs", "3"]},
    "entrypoint": lambda task: {**task, "entrypoint": ["python"]},
    "variable": lambda task: {**task, "env": {**task["env"], "SEED": "8"}},
    "no variable": lambda task: {**task, "env": {}},
    "content": lambda task: {
        **task,
        "inputs": [{"path": "/in/config", "content": "lr: 0.2\n"}, task["inputs"][1]],
    },
    "declared digest": lambda task: {
        **task,
        "inputs": [task["inputs"][0], {**task["inputs"][1], "sha256": "c" * 64}],
    },
    "path of an input": lambda task: {
        **task,
        "inputs": [task["inputs"][0], {**task["inputs"][1], "path": "/in/other"}],
    },
    "output": lambda task: {**task, "outputs": [{"path": "/out/model", "name": "m"}]},
    "secret": lambda task: {**task, "secrets": [{"name": "s", "env": "S"}]},
    "folder": lambda task: {**task, "workdir": "/w"},
    "user": lambda task: {**task, "user": "1000:1000"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_definition_has_another_key(change: str) -> None:
    assert key_of(CHANGES[change](TRAIN)) != key_of(TRAIN)


def test_version_index_and_replicas_are_parts_of_the_key() -> None:
    keys = [
        key_of(TRAIN),
        key_of(TRAIN, version="2"),
        key_of(TRAIN, index=1, replicas=2),
        key_of(TRAIN, index=0, replicas=2),
        key_of(TRAIN, index=1, replicas=3),
    ]
    assert len(set(keys)) == len(keys)


def test_url_with_the_content_of_another_address_has_the_same_key() -> None:
    moved = {**TRAIN, "inputs": [TRAIN["inputs"][0], {**TRAIN["inputs"][1], "url": "s3://b/k"}]}
    assert key_of(moved) == key_of(TRAIN)


def test_unknown_contents_have_no_key() -> None:
    inputs = [{"path": "/in/a", "url": "https://example.org/a"}]
    with pytest.raises(NoKey, match="/in/a has no sha256"):
        key_of({**TRAIN, "inputs": inputs})
    with pytest.raises(NoKey, match="/in is not known yet"):
        derive_key(
            {"inputs": [{"path": "/in", "from_group": "a"}]},
            index=0,
            replicas=1,
            version="1",
            digests={},
        )


def test_given_keys_never_equal_derived_ones() -> None:
    assert given_key("k", "1") != given_key("k", "2")
    assert given_key("auto-1-" + "0" * 64, "1") not in (key_of(TRAIN), "auto-1-" + "0" * 64)


def test_identities_of_scopes_differ() -> None:
    scopes = ["project 1", "project 11", "domain 1"]
    found = {identity_of(scope, key) for scope in scopes for key in ("k", "1k", " k")}
    assert len(found) == 9


def test_files_are_digested_by_name_and_content() -> None:
    files = [("0", "a"), ("1", "b")]
    assert digest_of_files(files) == digest_of_files(files[::-1])
    assert digest_of_files(files) != digest_of_files([("0", "b"), ("1", "a")])
    assert digest_of_files([("0a", "b")]) != digest_of_files([("0", "ab")])


def chi_square(found: Counter[str], shards: int) -> float:
    expected = found.total() / shards
    missing = (shards - len(found)) * expected
    return sum((count - expected) ** 2 / expected for count in found.values()) + missing


def test_keys_are_spread_evenly_over_shards() -> None:
    # 99.99 % of evenly distributed samples are below these: 255 and 1,295 degrees of freedom.
    keys = [
        derive_key({"image": f"x:{n}"}, index=0, replicas=1, version="1", digests={})
        for n in range(100_000)
    ]
    assert len(set(keys)) == 100_000
    assert chi_square(Counter(key[7:9] for key in keys), 256) < 347
    identities: list[UUID] = [identity_of("project 1", key) for key in keys]
    assert chi_square(Counter(one.hex[:2] for one in identities), 256) < 347
    prefixes = (
        prefix_of(domain="d", project="p", job=1, task=1, attempt=str(UUID(int=n)))
        for n in range(100_000)
    )
    assert chi_square(Counter(prefix.partition("/")[0] for prefix in prefixes), 36 * 36) < 1_495
