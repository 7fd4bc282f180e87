"""Read the filters that squeue, sacct and scancel share."""

import getpass
from collections.abc import Mapping
from datetime import datetime

from slurm_commands.arrays import read_address
from slurm_commands.listing import Selection
from slurm_commands.options import Option, split_list

FILTER_OPTIONS = (
    Option("name", "n"),
    Option("user", "u"),
    Option("me", takes_value=False),
    Option("partition", "p"),
    Option("account", "A"),
)


def read_filters(
    given: Mapping[str, str], *, states: str | None = None, since: datetime | None = None
) -> Selection:
    """Return the selection of these options. `states` are those of Cellrun. Raise Refused."""
    users = split_list(given, "user") + [getpass.getuser()] * ("me" in given)
    return Selection(
        addresses=[read_address(word) for word in split_list(given, "jobs")],
        names=split_list(given, "name"),
        owners=users,
        pools=split_list(given, "partition"),
        projects=split_list(given, "account"),
        states=states,
        since=since,
    )
