"""The guard ends a cell's exclusive containers before its lease expires, even without the cell.

`watchlist` declares the messages between cell and guard; `decisions` has no clock of its own. With
docker and process the guard is a separate process (`python -m workers.guard`): the cell starts it
and connects to it through `link`, and it controls the engine through `engine_control`. With memory,
where containers end with the cell, the guard is part of the cell (`local`).
`workers.agent.exclusive` is the cell's part.
"""
