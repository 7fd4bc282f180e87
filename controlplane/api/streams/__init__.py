"""Responses that last: changes of jobs and tasks as they happen, in front of Django."""
