"""Calls of the hooks that other packages bring for their kinds of jobs."""
