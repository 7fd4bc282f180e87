"""States: the transition table, effects, and the rollup from tasks to jobs."""
