"""Admin pages for jobs, tasks, attempts, one-off tasks and their callbacks."""
