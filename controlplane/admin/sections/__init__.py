"""Sections of the pages of jobs, tasks and attempts: charts, output, usage, commands."""
