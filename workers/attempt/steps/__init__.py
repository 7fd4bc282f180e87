"""The steps of an attempt, one file each: a step returns, or raises AttemptFailed."""
