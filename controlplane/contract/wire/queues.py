"""Names of the queues: eight fixed inbox shards, and one queue per incarnation of a cell."""

import re
import zlib

CELL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The name of a cell, which is part of names of queues and of users and patterns of Redis."""

INBOX_SHARDS = 8
ORDERS_TASK = "cell.orders"
INBOX_QUEUES = tuple(f"inbox.{shard}" for shard in range(INBOX_SHARDS))


def inbox_queue(cell: str) -> str:
    """Return the inbox queue of a cell: always the same, which keeps its messages in order."""
    return INBOX_QUEUES[zlib.crc32(cell.encode()) % INBOX_SHARDS]


def cell_queue(cell: str, incarnation: str) -> str:
    """Return the queue from which one incarnation of a cell receives orders."""
    return f"cell.{cell}.{incarnation}"
