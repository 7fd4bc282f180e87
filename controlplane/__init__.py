"""The control plane stores all state and makes all decisions; it never runs a container.

Imports go down only, as import-linter checks:

    config                                   assembly: settings, Celery, URLs, the embedded stack
    api | admin | inbox | ticks | management entry points: parse, call one command or query, render
    commands                                 writes; state/apply.py is the only writer of states
    queries                                  reads: rows and snapshots
    models | outbox | clock                  tables, outgoing messages, the only clock
    domain                                   pure decisions
    spec                                     a job as submitted
    contract                                 wire format, shared with the cells
"""
