"""Token buckets: what a key may take at once and over time."""

import pytest

from controlplane.limits.buckets import Buckets, Limit

LIMIT = Limit(per_second=2.0, burst=10.0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def buckets(clock: Clock) -> Buckets:
    return Buckets(now=clock, max_keys=3)


def test_a_full_bucket_gives_its_burst_and_then_the_rate(buckets: Buckets, clock: Clock) -> None:
    assert [buckets.take("a", 1, LIMIT) for _ in range(10)] == [0.0] * 10
    assert buckets.take("a", 1, LIMIT) == 0.5
    assert buckets.take("a", 1, LIMIT) == 0.5  # a refusal costs nothing
    clock.seconds += 0.5
    assert buckets.take("a", 1, LIMIT) == 0.0
    assert buckets.take("a", 1, LIMIT) == 0.5


def test_a_pause_refills_up_to_the_burst(buckets: Buckets, clock: Clock) -> None:
    buckets.charge("a", 10, LIMIT)
    clock.seconds += 3600
    assert buckets.take("a", 10, LIMIT) == 0.0
    assert buckets.take("a", 1, LIMIT) == 0.5


def test_a_debt_is_paid_before_the_next_request(buckets: Buckets, clock: Clock) -> None:
    buckets.charge("a", 30, LIMIT)
    assert buckets.take("a", 1, LIMIT) == 10.5
    clock.seconds += 10.5
    assert buckets.take("a", 1, LIMIT) == 0.0


def test_what_is_given_back_exceeds_no_burst(buckets: Buckets) -> None:
    buckets.take("a", 4, LIMIT)
    buckets.charge("a", -100, LIMIT)
    assert buckets.take("a", 10, LIMIT) == 0.0
    assert buckets.take("a", 1, LIMIT) == 0.5


def test_keys_do_not_share_a_bucket(buckets: Buckets) -> None:
    buckets.charge("a", 30, LIMIT)
    assert buckets.take("b", 10, LIMIT) == 0.0


def test_a_changed_limit_holds_at_once(buckets: Buckets) -> None:
    buckets.take("a", 1, LIMIT)
    assert buckets.take("a", 5, Limit(per_second=1.0, burst=4.0)) == 1.0


def test_the_key_that_was_used_least_recently_is_forgotten(buckets: Buckets) -> None:
    for key in ("a", "b", "c"):
        buckets.charge(key, 30, LIMIT)
    buckets.charge("a", 1, LIMIT)
    buckets.charge("d", 30, LIMIT)
    assert buckets.take("b", 1, LIMIT) == 0.0
    assert buckets.take("a", 1, LIMIT) > 0
    assert buckets.take("d", 1, LIMIT) > 0
