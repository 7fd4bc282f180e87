"""A cell: runs containers on the control plane's orders, and tells until it is heard.

The life of an order on a cell: `celery` takes the message, `cell` checks and journals it, a driver
in `drivers` runs it as a pipeline of `attempt` steps, `reporting` tells the control plane, and
`journal` remembers all of it over a kill -9. `guard` ends what is exclusive before the cell's lease
is over. Of the control plane a cell imports only `controlplane.contract`.
"""
