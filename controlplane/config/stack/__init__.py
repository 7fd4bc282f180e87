"""The embedded stack: the whole system on one machine by one command, nothing installed by hand.

`up` starts a real PostgreSQL, a real Redis and every process of ours under supervisor, `down`
stops them, `demo` does both round the examples. Nothing here is used where a real deployment
brings its own database, broker and process keeper.
"""
