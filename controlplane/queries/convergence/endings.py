"""Rule 8: jobs that are ending, with their descendants; gangs to requeue."""

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import JOB_STATES, TERMINAL

UNSUCCESSFUL = ", ".join(
    f"{state:d}" for state in sorted((JOB_STATES & TERMINAL) - {TaskState.SUCCEEDED})
)

ORPHANED_JOBS = f"""
    FROM controlplane_job j JOIN controlplane_job p ON p.id = j.parent_id
    WHERE j.parent_id IS NOT NULL AND j.finished_at IS NULL AND j.ending_as IS NULL
      AND coalesce(p.ending_as, p.state) IN ({UNSUCCESSFUL})
    """

BOUNCING_JOBS = """
    FROM controlplane_job j WHERE j.is_bouncing AND j.finished_at IS NULL
    """

ENDING_JOBS = """
    FROM controlplane_job j WHERE j.ending_as IS NOT NULL AND j.finished_at IS NULL
    """
