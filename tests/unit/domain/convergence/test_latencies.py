"""Latencies in buckets: each has one bucket, and percentiles are close to the exact ones."""

import random
from statistics import quantiles

import pytest

from controlplane.domain.convergence.latencies import BOUNDS, bucket_of, percentile


def counts_of(latencies: list[float]) -> list[int]:
    counts = [0] * (len(BOUNDS) + 1)
    for seconds in latencies:
        counts[bucket_of(seconds)] += 1
    return counts


def test_a_latency_is_in_the_bucket_below_the_next_bound() -> None:
    assert bucket_of(0) == 0
    for bucket, bound in enumerate(BOUNDS):
        assert bucket_of(bound - 0.01) == bucket
        assert bucket_of(bound) == bucket + 1


def test_percentiles_are_within_the_bucket_of_the_exact_ones() -> None:
    dice = random.Random(7)
    latencies = [dice.lognormvariate(1, 1.5) for _ in range(5_000)]
    exact = quantiles(latencies, n=100)
    for share in (0.05, 0.5, 0.95):
        found = percentile(counts_of(latencies), share)
        assert found is not None
        assert bucket_of(found) == bucket_of(exact[round(share * 100) - 1])


def test_starts_in_one_bucket_count_as_evenly_distributed() -> None:
    assert percentile(counts_of([6.0] * 10), 0.5) == pytest.approx(7.5)
    assert percentile(counts_of([0.1, 0.1]), 1.0) == pytest.approx(0.25)


def test_there_is_no_percentile_without_starts_and_none_beyond_the_last_bound() -> None:
    assert percentile(counts_of([]), 0.5) is None
    assert percentile(counts_of([10**9]), 0.95) == BOUNDS[-1]
