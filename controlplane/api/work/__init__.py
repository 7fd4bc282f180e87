"""Endpoints for submitters: jobs, tasks, attempts, artifacts, history and log streams."""
