"""Drivers: docker, process, memory; one conformance suite holds all to the promises of `base`."""
