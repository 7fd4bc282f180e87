"""Keys of shapes: what is equal for placement has one number."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.scheduling_key import ShapeKey
from controlplane.domain.state.states import Band

KEYS = st.builds(
    ShapeKey,
    pool_id=st.integers(1, 2),
    band=st.sampled_from(Band),
    owner_id=st.integers(1, 2),
    project_id=st.integers(1, 2),
    resources=st.dictionaries(st.sampled_from(["cpu_millis", "gpu"]), st.integers(1, 2)),
    task_type=st.sampled_from(["container", "process"]),
    constraints=st.lists(
        st.builds(Constraint, st.just("zone"), st.sampled_from(Operator), st.just(("a",))),
        max_size=1,
    ),
    placement_tags=st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
    coscheduled=st.booleans(),
    allow_unsatisfiable=st.booleans(),
    concurrency=st.none() | st.builds(ConcurrencyRule, st.integers(1, 2), st.just("k"), st.none()),
)


@given(KEYS, KEYS)
def test_keys_with_one_identity_have_one_number(one: ShapeKey, other: ShapeKey) -> None:
    assert hash(one.identity()) is not None
    if one.identity() == other.identity():
        assert one.number() == other.number()


@given(KEYS, KEYS)
def test_keys_that_differ_in_one_field_have_different_identities(
    one: ShapeKey, other: ShapeKey
) -> None:
    for name in ShapeKey.__slots__:
        changed = replace(one, **{name: getattr(other, name)})
        if changed.number() != one.number():
            assert changed.identity() != one.identity()
