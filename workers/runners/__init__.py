"""Runners of other packages: reconcilers that drive work outside the cell, as its attempts.

`interface` declares what a runner implements and receives; docs/runners.md is the tutorial.
"""
