"""Drivers: docker, process and memory, all held to the promises of `base` by one conformance suite."""
