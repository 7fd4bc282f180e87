"""Join a host to an installation: check what a cell needs, then write its settings and key."""
