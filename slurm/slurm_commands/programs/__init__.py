"""One module per command; each has a `main`, which is a console script of the distribution."""
