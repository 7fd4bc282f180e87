"""The control plane keeps the truth and decides; it never runs a container.

Arrows of import go down only, and import-linter holds the line:

    config                                   assembly: settings, Celery, URLs, the embedded stack
    api | admin | inbox | ticks | management doors: parse, call one command or query, render
    commands                                 writes; effects.py is the only writer of state columns
    queries                                  reads: rows and snapshots
    models | outbox | clock                  tables, messages that leave, the one clock
    domain                                   decisions, pure
    spec                                     a job as submitted
    contract                                 words on the wire, shared with the cells
"""
