"""Carrying out what convergence decides: a file for each rule, listed in order by `rules`."""
