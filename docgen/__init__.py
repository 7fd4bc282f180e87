"""Generators of the documentation pages and pictures that follow from the code."""
