"""What placement reads: the snapshot of a pool, its policy, the capacity matrix, shares."""
