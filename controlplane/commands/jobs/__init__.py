"""Submission, cancellation, reruns, dry runs and one-off tasks."""
