"""The guard: ends a cell's exclusive containers before the cell's lease expires, even if the cell
is dead.

`watchlist` declares the messages between cell and guard, `decisions` takes the time as an argument.
For docker and process the guard is a separate process (`python -m workers.guard`), which a cell
starts and finds again through `link`, and which reaches the engine through `engine_control`. For
memory, where containers end with the cell, it is part of the cell (`local`).
`workers.agent.exclusive` is the cell's part.
"""
