"""Commands about jobs, tasks, their output and artifacts, and the cache."""
