"""Define why a future has no result: one class per cause, each with a readable message."""

from cellrun.errors import ClientError


class TaskFailed(ClientError):
    """The task of a future ended without success.

    `reason`: as the history has it. `exit_code`: None if no program ended. `log_command` shows its
    output.
    """

    def __init__(self, address: str, state: str, reason: str, exit_code: int | None) -> None:
        self.address, self.state, self.reason, self.exit_code = address, state, reason, exit_code
        self.log_command = f"cellrun logs {address}"
        cause = reason or ("no reason is known" if exit_code is None else f"exit code {exit_code}")
        super().__init__(f"task {address} ended {state}: {cause}; its log: {self.log_command}")


class JobFailed(ClientError):
    """A job ended without success. `log_command` shows the output of its failed tasks."""

    def __init__(self, job_id: int, state: str, reason: str) -> None:
        self.job_id, self.state, self.reason = job_id, state, reason
        self.log_command = f"cellrun logs {job_id} --failed"
        super().__init__(
            f"job {job_id} ended {state}: {reason or 'no reason is known'}; its log:"
            f" {self.log_command}"
        )


class JobGone(ClientError):
    """The job of a future does not exist any more, or the token may not read it."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is deleted, or the token may not read it any more")


class BadResult(ClientError):
    """A function has ended, but its result cannot be read."""


class ClientStopped(ClientError):
    """A thread of the client has ended, so that it accepts no more work: the cause has the error.

    Another client may work, for example once the server is available.
    """

    def __init__(self, fault: BaseException) -> None:
        super().__init__(f"the client has stopped: {str(fault) or type(fault).__name__}")


class RemoteTraceback(Exception):
    """The traceback of an exception in a task, as text: the cause of the exception here."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
