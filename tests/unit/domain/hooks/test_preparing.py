"""What a hook may set: the fields of a submission, up to the same limits, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.hooks.built_in import BatchHook
from controlplane.domain.hooks.interface import AttemptEnd, GroupOrigin, GroupTerms
from controlplane.domain.hooks.preparing import PreparedJob, prepare_job
from controlplane.domain.state.transitions import Event
from controlplane.spec import parse_job
from controlplane.spec.files import MAX_MOUNTS
from controlplane.spec.group import MAX_ENV
from controlplane.spec.parsing import field_path
from controlplane.spec.placing import MAX_CONSTRAINTS, MAX_TAGS
from controlplane.spec.services import MAX_PORTS

SHORT = {"name": "a", "image": "x"}
ZONE = {"key": "zone", "op": "eq", "values": ["a"]}


class Setting:
    """A hook that changes the terms."""

    def __init__(self, change: Callable[[GroupTerms], GroupTerms]) -> None:
        self._change = change

    def prepare(self, terms: GroupTerms) -> GroupTerms:
        return self._change(terms)

    def on_end(self, end: AttemptEnd) -> Event:
        return end.event


def prepared(body: dict[str, Any], **changes: Any) -> PreparedJob:
    hook = Setting(lambda terms: replace(terms, **changes))
    return prepare_job(parse_job(body), hook)


def faults(body: dict[str, Any], **changes: Any) -> list[str]:
    is_short = "groups" not in body
    findings = prepared(body, **changes).findings
    return [field_path(place, is_short=is_short) for place, _ in findings]


def test_unchanged_terms_leave_the_job_unchanged() -> None:
    spec = parse_job({**SHORT, "env": {"A": "1"}, "constraints": [ZONE]})
    for hook in (BatchHook(), Setting(lambda terms: terms), Setting(lambda terms: replace(terms))):
        found = prepare_job(spec, hook)
        assert found.spec is spec
        assert not any(found.changes)


def test_hook_reads_effective_terms_and_the_group_origin() -> None:
    seen: list[GroupTerms] = []
    body = {
        "name": "a",
        "labels": {"team": "blue"},
        "constraints": [ZONE],
        "placement_tags": ["ssd"],
        "groups": [{"name": "g", "image": "x", "resources": {"cpu": 2, "memory": "1Gi"}}],
    }
    prepare_job(parse_job(body), Setting(lambda terms: seen.append(terms) or terms))
    [terms] = seen
    assert terms.constraints == ({**ZONE, "values": ("a",), "required": True},)
    assert terms.placement_tags == ("ssd",)
    assert (terms.resources["cpu"], terms.resources["memory"]) == ("2", "1Gi")
    assert terms.origin == GroupOrigin("a", "g", "default", "default", "default", {"team": "blue"})


def test_constraints_set_by_a_hook_replace_those_of_the_job_for_one_group() -> None:
    groups = [{"name": name, "image": "x"} for name in ("g", "h")]
    other = {**ZONE, "values": ["b"]}

    def change(terms: GroupTerms) -> GroupTerms:
        if terms.origin.group == "h":
            return terms
        return replace(terms, constraints=(*terms.constraints, other))

    spec = parse_job({"name": "a", "constraints": [ZONE], "groups": groups})
    found = prepare_job(spec, Setting(change))
    listed = [
        [item.values for item in found.spec.constraints_of(group)] for group in found.spec.groups
    ]
    assert listed == [[["a"], ["b"]], [["a"]]]
    assert [list(changes) for changes in found.changes] == [["constraints"], []]


@pytest.mark.parametrize(
    ("field", "item", "most"),
    [
        ("env", lambda n: (f"A{n}", ""), MAX_ENV),
        ("constraints", lambda n: {**ZONE, "key": f"k{n}"}, MAX_CONSTRAINTS),
        ("placement_tags", lambda n: f"t{n}", MAX_TAGS),
        ("mounts", lambda n: {"source": f"/s{n}", "target": f"/t{n}"}, MAX_MOUNTS),
        ("ports", lambda n: f"p{n}", MAX_PORTS),
    ],
)
def test_hook_has_the_same_limits_as_a_submission(
    field: str, item: Callable[[int], Any], most: int
) -> None:
    def items(count: int) -> Any:
        listed = [item(n) for n in range(count)]
        return dict(listed) if field == "env" else tuple(listed)

    assert faults(SHORT, **{field: items(most)}) == []
    assert faults(SHORT, **{field: items(most + 1)}) == [field]
    groups = {"name": "a", "groups": [{"name": "g", "image": "x"}, {"name": "h", "image": "x"}]}
    both = [f"groups[0].{field}", f"groups[1].{field}"]
    assert faults(groups, **{field: items(most + 1)}) == both


def test_rules_between_fields_apply_to_terms_set_by_a_hook() -> None:
    process = {"name": "a", "task_type": "process", "command": ["true"]}
    mount = {"source": "/s", "target": "/t"}
    [(place, text)] = prepared(process, mounts=(mount,)).findings
    assert place == ("groups", 0, "mounts")
    assert text.endswith("(set by kind batch)")


def test_hook_can_drop_but_not_add_a_health_check() -> None:
    check = {"command": ["true"]}
    service = {**SHORT, "kind": "own", "health_check": check}
    found = prepared(service, has_health_check=False)
    assert found.changes == [{"health_check": None}]
    assert found.spec.groups[0].health_check is None
    assert faults(SHORT, has_health_check=True) == ["health_check"]


@pytest.mark.parametrize(
    "write",
    [
        lambda terms: terms.env.update(A="1"),
        lambda terms: terms.resources.update(cpu=1),
        lambda terms: terms.constraints[0].update(key="x"),
        lambda terms: terms.constraints[0]["values"].append("b"),
        lambda terms: terms.mounts[0].update(source="/"),
        lambda terms: terms.origin.labels.update(team="red"),
    ],
)
def test_in_place_change_of_terms_is_refused(
    write: Callable[[Any], None],
) -> None:
    def change(terms: GroupTerms) -> GroupTerms:
        write(terms)
        return terms

    mount = {"source": "/s", "target": "/t"}
    spec = parse_job({**SHORT, "constraints": [ZONE], "mounts": [mount]})
    [(place, text)] = prepare_job(spec, Setting(change)).findings
    assert (place, "AttributeError" in text) == (("kind",), True)


def test_equal_terms_rebuilt_by_a_hook_are_no_change() -> None:
    def change(terms: GroupTerms) -> GroupTerms:
        constraints = tuple({**item, "values": list(item["values"])} for item in terms.constraints)
        return replace(terms, constraints=constraints, env=dict(terms.env), placement_tags=[])  # type: ignore[arg-type]

    spec = parse_job({**SHORT, "constraints": [ZONE], "env": {"A": "1"}})
    found = prepare_job(spec, Setting(change))
    assert (found.spec, any(found.changes), found.findings) == (spec, False, [])


class Endless:
    """An iterator that must not be read, as it may have no end."""

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> str:
        pytest.fail("it was read")


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"ports": Endless()}, "ports", "must be a list or tuple, but the hook returned Endless"),
        ({"ports": "http"}, "ports", "must be a list or tuple, but the hook returned str"),
        ({"placement_tags": None}, "placement_tags", "but the hook returned None"),
        ({"constraints": Endless()}, "constraints", "but the hook returned Endless"),
        ({"constraints": (5,)}, "constraints[0]", "must be a dict, but the hook returned int"),
        ({"mounts": (Endless(),)}, "mounts[0]", "must be a dict, but the hook returned Endless"),
        ({"env": ["A=1"]}, "env", "must be a dict, but the hook returned list"),
        ({"env": None}, "env", "must be a dict, but the hook returned None"),
        ({"resources": 2}, "resources", "must be a dict, but the hook returned int"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds", "a number is not finite"),
        ({"env": {"A": "\0"}}, "env.A", "a text contains a NUL character"),
        ({"env": {5: "\0"}}, "env[5]", "a text contains a NUL character"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_field(
    changes: dict[str, Any], field: str, text: str
) -> None:
    [(place, why)] = prepared(SHORT, **changes).findings
    assert field_path(place, is_short=True) == field
    assert text in why


class Unprintable(Exception):
    """An error whose own methods fail."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class UnprintableValue(Unprintable, ValueError):
    """One by which a hook rejects."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unprintable(), "the hook batch failed at group main: Unprintable"),
        (UnprintableValue(), "the hook batch rejected group main: UnprintableValue"),
        (ValueError("a\0b\ud800"), "the hook batch rejected group main: ab?"),
        (RuntimeError("x" * 100_000), "the hook batch failed at group main: RuntimeError('xx"),
    ],
)
def test_every_hook_error_is_described(error: Exception, text: str) -> None:
    def change(terms: GroupTerms) -> GroupTerms:
        raise error

    [(place, why)] = prepare_job(parse_job(SHORT), Setting(change)).findings
    assert place == ("kind",)
    assert why.startswith(text)
    assert len(why) < 1_100
