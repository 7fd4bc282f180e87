"""Define the documents of exec sessions for the OpenAPI description."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from controlplane.api.schemas import ResponseModel
from controlplane.commands.attempts.exec_sessions import ExecRequest
from controlplane.contract.exec_frames import MAX_COMMAND_ARGUMENTS, MAX_COMMAND_BYTES
from controlplane.spec.fields import Model

_MAX_CELLS = 0xFFFF  # characters of a terminal: 16 bits in the frame RESIZE


class ExecSubmission(Model):
    """A program to run inside a running attempt."""

    command: list[str] = Field(
        min_length=1,
        max_length=MAX_COMMAND_ARGUMENTS,
        description=f"The program and its arguments, at most {MAX_COMMAND_BYTES // 1024} KiB when"
        " quoted for a shell. There is no shell unless it names one.",
    )
    tty: bool = Field(default=False, description="Whether it gets a terminal.")
    stdin: bool = Field(default=False, description="Whether its standard input is open.")
    rows: int = Field(default=0, ge=0, le=_MAX_CELLS, description="Of the terminal; 0: not known.")
    columns: int = Field(default=0, ge=0, le=_MAX_CELLS)

    def request(self) -> ExecRequest:
        """Return the argument of the command."""
        return ExecRequest(tuple(self.command), self.tty, self.stdin, self.rows, self.columns)


class ExecDocument(ResponseModel):
    """A session: a program that a user runs inside an attempt."""

    uid: UUID
    number: int = Field(description="In its attempt, from 1.")
    attempt: UUID
    task: int
    job: int
    command: list[str]
    tty: bool
    stdin: bool
    actor: str = Field(description="Name of the user.")
    token: str = Field(description="Name of the user's token; empty: a session of the admin.")
    state: Literal["REQUESTED", "OPEN", "ENDED"]
    requested_at: datetime
    opened_at: datetime | None = Field(description="When the cell took it; null: not (yet).")
    ended_at: datetime | None
    exit_code: int | None = Field(description="Of the program; null: it is not known.")
    reason: str = Field(description="Why the session ended, unless the program ended by itself.")
