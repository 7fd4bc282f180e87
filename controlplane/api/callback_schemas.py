"""Define the response documents of callbacks."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from controlplane.api.schemas import ResponseModel


class Delivery(ResponseModel):
    """One try to deliver a callback."""

    number: int
    began_at: datetime
    ended_at: datetime
    status: int | None = Field(description="Of the receiver's answer; null: it gave none.")
    error: str = Field(description="Why it was none that delivers.")


class CallbackDetail(ResponseModel):
    """The callback of a task's end, or (`task` is null) of the job's, and its progress."""

    id: int
    job: int
    task: int | None
    url: str
    state: Literal["waiting", "claimed", "delivered", "abandoned"]
    tries: int
    due_at: datetime = Field(description="When it is tried next, if it waits.")
    give_up_at: datetime = Field(description="From then on it is not tried again.")
    created_at: datetime
    ended_at: datetime | None = Field(description="When it was delivered, or abandoned.")
    last_error: str
    deliveries: list[Delivery] = Field(description="Its last tries, the newest first; at most 5.")


class CallbackKey(ResponseModel):
    """The key that signs the callbacks of the caller's own jobs and tasks."""

    key: str = Field(description="32 bytes in hexadecimal.")
    algorithm: Literal["HMAC-SHA256"]
