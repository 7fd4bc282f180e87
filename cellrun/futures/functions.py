"""Send functions with their arguments to tasks, and read what they return or raise."""

import base64
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from cellrun.errors import BadInput
from cellrun.futures import task_program
from cellrun.futures.failures import BadResult, RemoteTraceback

MAX_CALL_BYTES = 1024 * 1024
"""Of a function, and of the arguments of a call; a submission has at most 4 MiB."""


def pack(what: Any, name: str) -> str:
    """Return an object as a line of text. Raise BadInput if it is too large or not serializable."""
    try:
        import cloudpickle
    except ImportError:
        raise BadInput(
            "functions need cloudpickle: pip install 'cellrun[futures]', or submit command lines"
        ) from None
    try:
        text = base64.b64encode(cloudpickle.dumps(what)).decode("ascii")
    except Exception as fault:
        raise BadInput(f"{name} cannot be sent to a task: {fault}") from fault
    if len(text) > MAX_CALL_BYTES:
        raise BadInput(
            f"{name} takes {len(text):,} bytes as text, and at most {MAX_CALL_BYTES:,} can be sent:"
            " pass the address of a file instead"
        )
    return text


def pack_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a call as a line of text."""
    return pack((tuple(args), dict(kwargs)), "the arguments")


def pack_function(function: Callable[..., Any]) -> str:
    """Return a function as a line of text."""
    return pack(function, f"the function {getattr(function, '__qualname__', function)}")


def group_of_function(python: str) -> dict[str, Any]:
    """Return the fields of a group whose tasks call a function, without its input."""
    values = {"path": f"{task_program.VALUES}/", "name": "value", "keep_on_failure": True}
    return {"command": [python, "-c", _program()], "outputs": [values]}


def input_of(function: str, calls: Sequence[str]) -> dict[str, Any]:
    """Return the input of a group of calls of one function."""
    content = "\n".join([task_program.version(), function, *calls])
    return {"path": task_program.CALLS, "content": content}


def unpack(content: bytes, address: str) -> Any:
    """Return the result of a function, or raise its exception with the remote traceback.

    `content`: an output, or a result, which is text. This executes what the task has written: see
    docs/python.md. Raise BadResult.
    """
    try:
        is_pickle = content.startswith(b"\x80")
        kind, outcome, trace = pickle.loads(content if is_pickle else base64.b64decode(content))
    except Exception as fault:
        raise BadResult(f"the result of task {address} cannot be read: {fault}") from fault
    if kind == "value":
        return outcome
    raise outcome from RemoteTraceback(trace)


@cache
def _program() -> str:
    return inspect.getsource(task_program)
