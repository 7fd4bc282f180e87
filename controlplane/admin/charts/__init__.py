"""Charts of pages: the grid of a job's tasks, and attempts on one time axis."""
