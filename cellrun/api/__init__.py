"""The Python client of the API: transport, paths, and the calls by subject."""
