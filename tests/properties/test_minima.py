"""A job's document, parsed by the product, ends as the seeds' text defines."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.gangs import GangGroupFacts, GangVerdict, judge_gang
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state
from controlplane.spec import JobSpec, parse_job
from tests.scenarios.plain import PlainGroup, plain_end, volcano

ENDS = st.sampled_from(["SUCCEEDED", "SUCCEEDED", "FAILED", "WORKER_FAILED", "PREEMPTED"])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """A job with up to three groups; each minimum is written or not."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    groups: list[dict[str, object]] = []
    least = 0
    for name, size in zip("abc", sizes, strict=False):
        group: dict[str, object] = {"name": name, "image": "x", "replicas": size}
        if draw(st.booleans()):
            group["min_available"] = draw(st.integers(0, size))
        groups.append(group)
    if any("min_available" in group for group in groups):
        least = sum(int(str(group.get("min_available", group["replicas"]))) for group in groups)
    document: dict[str, object] = {"name": "j", "groups": groups}
    if draw(st.booleans()):
        document["min_available"] = draw(st.integers(least, sum(sizes)))
    if draw(st.booleans()):
        document["max_task_failures"] = draw(st.integers(0, sum(sizes)))
    return document


def tally_of(spec: JobSpec, states: list[list[str]]) -> JobTally:
    """The job as its rows have it."""
    groups = tuple(
        GroupTally(Counter(S[state] for state in found), minimum)
        for found, minimum in zip(states, spec.minima(), strict=True)
    )
    return JobTally(
        groups, spec.minimum(), spec.tolerated_failures(), spec.has_explicit_minimum(), True
    )


@given(documents(), st.data())
def test_job_ends_as_specified_for_its_minima(
    document: dict[str, object], data: st.DataObject
) -> None:
    spec = parse_job(document)
    states = [
        data.draw(st.lists(ENDS, min_size=group.replicas, max_size=group.replicas))
        for group in spec.groups
    ]
    plain = [PlainGroup(s, g.min_available) for s, g in zip(states, spec.groups, strict=True)]
    tolerated = document.get("max_task_failures", spec.tolerated_failures())
    expected = plain_end(plain, minimum=spec.min_available, tolerated=int(str(tolerated)))
    assert job_state(tally_of(spec, states)).name == expected


@given(documents(), st.data())
def test_gang_may_run_with_as_many_members_as_must_succeed(
    document: dict[str, object], data: st.DataObject
) -> None:
    """Volcano: the same minimum decides what is scheduled together and how the job ends."""
    spec = parse_job(document)
    present = [data.draw(st.integers(0, group.replicas)) for group in spec.groups]
    plain = [
        PlainGroup(["SUCCEEDED"] * count + ["FAILED"] * (group.replicas - count), written)
        for count, group in zip(present, spec.groups, strict=True)
        for written in [group.min_available]
    ]
    gang = [
        GangGroupFacts({S.RUNNING: count, S.PENDING: group.replicas - count}, minimum)
        for count, group, minimum in zip(present, spec.groups, spec.minima(), strict=True)
    ]
    holds = judge_gang(gang, spec.minimum()) is GangVerdict.HOLDS or not sum(present)
    assert holds == (volcano(plain, spec.min_available) or not sum(present))
