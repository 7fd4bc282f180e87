"""States: the transition table, effects, and what a change of a task means for its job."""
