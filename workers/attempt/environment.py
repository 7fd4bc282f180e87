"""The environment variables that every task gets beside its own."""

from collections.abc import Mapping, Sequence

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.trace_context import attempt_span_id, format_traceparent, read_trace

# Ports for programs in containers: they need no root, and few programs use them by default.
FIRST_PORT = 20_000


def build_environment(run: RunAttempt, spec: GroupSpec, cell: str) -> Mapping[str, str]:
    """Return the task's own variables and Cellrun's, which take precedence."""
    return {
        **spec.env,
        **_trace_context(run, spec),
        "CELLRUN_JOB_ID": str(spec.job_id),
        "CELLRUN_JOB_NAME": spec.job_name,
        "CELLRUN_GROUP": spec.group,
        "CELLRUN_TASK_ID": str(run.task_id),
        "CELLRUN_TASK_INDEX": str(run.task_index),
        "CELLRUN_REPLICAS": str(spec.replicas),
        "CELLRUN_ATTEMPT_UID": run.uid,
        "CELLRUN_ATTEMPT_NUMBER": str(run.number),
        "CELLRUN_CELL": cell,
    }


def _trace_context(run: RunAttempt, spec: GroupSpec) -> Mapping[str, str]:
    """Return the variable with which the spans of the program are children of the attempt's."""
    if not spec.trace:
        return {}
    trace_id = read_trace(spec.trace)[0]
    return {"TRACEPARENT": format_traceparent(trace_id, attempt_span_id(trace_id, run.uid))}


def port_variable(name: str) -> str:
    """Return the variable that holds the number of the port with that name."""
    return f"CELLRUN_PORT_{name.upper().replace('-', '_')}"


def inner_ports(names: Sequence[str]) -> dict[str, int]:
    """Return the port in the container for each name."""
    return {name: FIRST_PORT + position for position, name in enumerate(names)}
