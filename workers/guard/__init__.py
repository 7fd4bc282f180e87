"""The guard: ends a cell's exclusive containers before the cell's lease does, whoever else is dead.

`watchlist` is what cell and guard tell each other, `guard` the decisions, on time that is told it.
For docker and process the guard is a process of its own (`python -m workers.guard`), which a cell
starts and finds again through `link`, and which `hands` let reach the engine. For memory, where
containers die with the cell, it lives in the cell (`local`). `exclusive` is the cell's own part.
"""
