"""Input of placement: the snapshot of a pool, its policy, the capacity matrix, shares."""
