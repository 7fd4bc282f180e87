"""A record of a pass survives its way through JSON: it is the same, and so is the plan."""

import json

from hypothesis import given

from controlplane.domain.placement.replay import (
    PassRecord,
    plan_document,
    read_record,
    replay,
    write_record,
)
from tests.properties.placement_worlds import worlds
from tests.unit.domain.placement.pools import Pool


@given(worlds())
def test_stored_record_gives_the_same_plan(pool: Pool) -> None:
    record = PassRecord(pool.snapshot, pool.facts, limit=10_000)
    text = json.dumps(write_record(record))
    kept = read_record(json.loads(text))
    assert json.dumps(write_record(kept)) == text
    before = replay(record, pool.plugins, lambda: 0.0)
    after = replay(kept, pool.plugins, lambda: 0.0)
    assert plan_document(kept, after) == plan_document(record, before)
    assert after.plan.placements == before.plan.placements
    assert after.screened == before.screened
