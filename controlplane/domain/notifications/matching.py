"""What rules select: kinds of alerts, and ends of jobs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from controlplane.contract.states import TaskState
from controlplane.domain.alerts import ALERTS, Severity

FAILING = "notification_failing"
"""The alert of an address that messages do not reach; no message about it goes to that address."""

LABEL = "notify"
"""The label of jobs that rules can select by."""


def select_kinds(kinds: Collection[str], *, only_critical: bool) -> list[str]:
    """Return the kinds of alerts that a rule with these fields selects; no kinds: all."""
    return [
        name
        for name, kind in ALERTS.items()
        if (not kinds or name in kinds)
        and (not only_critical or kind.severity is Severity.CRITICAL)
    ]


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended."""

    job_id: int
    project: str
    name: str
    state: TaskState
    labels: Mapping[str, str]
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class EndedJobFilter:
    """The ended jobs that a rule selects; an empty field selects all."""

    projects: frozenset[str] = frozenset()
    states: frozenset[TaskState] = frozenset()
    name_pattern: str = ""
    label: str = ""

    def selects(self, job: EndedJob) -> bool:
        """Return whether each field selects the job."""
        return (
            (not self.projects or job.project in self.projects)
            and (not self.states or job.state in self.states)
            and (not self.name_pattern or fnmatchcase(job.name, self.name_pattern))
            and (not self.label or job.labels.get(LABEL) == self.label)
        )
