"""Drivers: docker, process, runner, memory; one conformance suite tests all against `base`."""
