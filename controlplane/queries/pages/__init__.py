"""Queries of the operators' pages, each by one indexed statement."""
