"""Schedules: the calendar of a cron expression, and what each of its instants starts."""
