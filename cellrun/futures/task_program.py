"""Run one call of a Python function in a task: this file is the program of the task.

It imports only what a task has: the standard library and cloudpickle. `/in/calls` has the version
of Python, the function, and the arguments of each task of the group, one a line. A result of at
most 10,240 bytes is written to the result file, a longer one and an exception as an output.
"""

import base64
import os
import pickle
import sys
import traceback

MAX_RESULT = 10_240
CALLS, RESULT, VALUES = "/in/calls", "/out/result", "/out/value"
STORED = "pickle"
"""Name of the file below VALUES."""


def main() -> int:
    """Call the function of this task and write the outcome; return the exit code."""
    root, index = os.environ.get("CELLRUN_ROOT", ""), int(os.environ["CELLRUN_TASK_INDEX"])
    with open(root + CALLS, encoding="ascii") as file:
        python, function, *calls = file.read().split("\n")
    try:
        outcome = pack_value(run_call(python, function, calls[index]))
        failed = False
    except BaseException as fault:  # the caller receives whatever the function raised
        traceback.print_exc()
        outcome, failed = pack_fault(fault, traceback.format_exc()), True
    text = base64.b64encode(outcome)
    # An output must exist; an empty folder stores nothing.
    os.makedirs(root + VALUES, exist_ok=True)
    if failed or len(text) > MAX_RESULT:
        with open(f"{root}{VALUES}/{STORED}", "wb") as stored:
            stored.write(outcome)
        return int(failed)
    os.makedirs(os.path.dirname(root + RESULT), exist_ok=True)
    with open(root + RESULT, "wb") as result:
        result.write(text)
    return 0


def run_call(python: str, function: str, call: str) -> object:
    """Return what the function returns."""
    present = version()
    if python != present:
        raise RuntimeError(f"the function comes from Python {python}, and the task has {present}")
    loaded = pickle.loads(base64.b64decode(function))
    args, kwargs = pickle.loads(base64.b64decode(call))
    return loaded(*args, **kwargs)


def version() -> str:
    """Return the version of Python, as far as functions depend on it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pack_value(value: object) -> bytes:
    """Return a result as bytes. Raise what cloudpickle raises."""
    import cloudpickle

    return bytes(cloudpickle.dumps(("value", value, "")))


def pack_fault(fault: BaseException, trace: str) -> bytes:
    """Return an exception and its traceback as bytes; without the exception, if it has none."""
    try:
        import cloudpickle

        packed = bytes(cloudpickle.dumps(("fault", fault, trace)))
        pickle.loads(packed)  # some exceptions can be pickled but not loaded
    except Exception:
        text = f"{type(fault).__name__}: {fault}"
        return pickle.dumps(("fault", RuntimeError(text), trace))
    return packed


if __name__ == "__main__":
    sys.exit(main())
