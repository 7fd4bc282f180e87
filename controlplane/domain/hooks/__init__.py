"""Kinds of jobs: each has a hook that adapts the lifecycle of its tasks."""
