"""A cell: runs containers on orders of the control plane, and reports until it is acknowledged.

The way of an order through a cell: `service` receives the message, `agent` checks and journals it,
a driver in `drivers` runs it as a pipeline of `attempt` steps, `agent.reporting` reports to the
control plane, and `journal` survives a kill -9. `guard` ends exclusive containers before the cell's
lease expires. Of the control plane a cell imports only `controlplane.contract`.
"""
