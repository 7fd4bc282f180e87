"""Management commands: each calls one command or query, like the API."""
