"""Runners of other packages: reconcilers that drive what runs elsewhere, as attempts of a cell.

`interface` is what a runner promises and what it is given; docs/runners.md is the tutorial.
"""
