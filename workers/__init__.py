"""A cell: runs containers on orders of the control plane, and reports until acknowledged.

The path of an order: `service` receives the message, `agent` checks and journals it, a driver in
`drivers` runs it as a pipeline of `attempt` steps, and `agent.reporting` reports to the control
plane. `journal` survives a kill -9. `guard` ends exclusive containers before the cell's lease
expires. Of the control plane a cell imports only `controlplane.contract`.
"""
