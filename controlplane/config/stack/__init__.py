"""The embedded stack: the whole system on one machine by one command.

`up` starts PostgreSQL, Redis and all processes of Cellrun under supervisor, `down` stops them, and
`demo` runs the examples on a temporary stack. A deployment with its own database, broker and
process manager does not use this package.
"""
