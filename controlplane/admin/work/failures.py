"""The section "What failed" of a job: unsuccessful tasks by reason, with their last output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.utils.safestring import SafeString

from controlplane.admin.badges import instant, list_link, page_link, state_badge
from controlplane.admin.base import Section
from controlplane.admin.sections.output import OutputTail, find_last_lines
from controlplane.admin.work.attempts import reason_of
from controlplane.domain.state.exit_statuses import with_signal
from controlplane.domain.state.states import UNSUCCESSFUL
from controlplane.models import Attempt, Job, Task
from controlplane.queries.pages.failures import FailureGroup, find_failure_groups
from controlplane.queries.views.overviews import count_tasks_of_jobs

_SHOWN_REASONS = 8
# Reasons with output: each is one or two reads of the store, which may be remote.
_SHOWN_OUTPUTS = 3


@dataclass(frozen=True, slots=True)
class FailureLine:
    """The tasks that failed for one reason, and the newest of them as the example.

    `detail`: the message of its attempt, if it is not the reason.
    """

    badge: SafeString
    count: tuple[str, str]
    reason: str
    detail: str
    task: SafeString | str
    attempt: SafeString | str
    cell: SafeString | str
    ended: SafeString | str
    output: OutputTail | None


@dataclass(frozen=True, slots=True)
class Failures(Section):
    """Unsuccessful tasks by reason."""

    template: ClassVar[str] = "controlplane/section_failures.html"
    lines: Sequence[FailureLine] = ()


def failures_sections(job: Job, *, shows_output: bool) -> list[Section]:
    """Return the section, or none without unsuccessful tasks. `shows_output`: with log lines."""
    if not UNSUCCESSFUL & count_tasks_of_jobs([job.pk])[job.pk].keys():
        return []
    groups = find_failure_groups(job.pk, limit=_SHOWN_REASONS)
    tasks, attempts = _load_newest(groups)
    lines, outputs = [], 0
    for group in groups:
        task = tasks.get(group.newest_task)
        attempt = attempts.get(task.attempt_uid) if task else None
        output = None
        if shows_output and attempt is not None and outputs < _SHOWN_OUTPUTS:
            output = find_last_lines(attempt.pk)
            outputs += 1
        lines.append(_line(job, group, task, attempt, output))
    hidden = groups[0].reasons - len(groups) if groups else 0
    more = list_link("task", f"{hidden} more reasons", job__id__exact=job.pk) if hidden else None
    return [Failures("What failed", anchor="failures", lines=lines, more=more)]


def task_failure_sections(task: Task, *, shows_output: bool) -> list[Section]:
    """Return why a task did not succeed, with the output of its last attempt; none otherwise."""
    if task.state not in UNSUCCESSFUL:
        return []
    attempts = Attempt.objects.select_related("cell").defer("result", "usage", "details")
    attempt = attempts.filter(pk=task.attempt_uid).first() if task.attempt_uid else None
    output = find_last_lines(attempt.pk) if shows_output and attempt is not None else None
    group = FailureGroup(task.state, task.failure_reason, 1, task.pk, 1)
    line = _line(task.job, group, task, attempt, output)
    return [Failures("What failed", anchor="failures", lines=[line])]


def _load_newest(
    groups: Sequence[FailureGroup],
) -> tuple[Mapping[int, Task], Mapping[Any, Attempt]]:
    """Return the newest task of each group, and its last attempt by uid."""
    found = Task.objects.select_related("group").defer("group__launch")
    tasks = found.in_bulk([group.newest_task for group in groups])
    uids = [task.attempt_uid for task in tasks.values() if task.attempt_uid]
    attempts = Attempt.objects.select_related("cell").defer("result", "usage", "details")
    return tasks, attempts.in_bulk(uids)


def _line(
    job: Job,
    group: FailureGroup,
    task: Task | None,
    attempt: Attempt | None,
    output: OutputTail | None,
) -> FailureLine:
    text = group.reason or (reason_of(attempt) if attempt else "") or "no reason"
    detail = attempt.message if attempt else ""
    filters = {"job__id__exact": job.pk, "state__exact": group.state}
    return FailureLine(
        badge=state_badge(group.state),
        count=list_link("task", f"{group.tasks} ×", **filters, failure_reason__exact=group.reason),
        reason=with_signal(text),
        detail="" if detail == text else detail,
        task=page_link("task", task.pk, f"{task.group.name}.{task.index}") if task else "",
        attempt=page_link(
            "attempt",
            attempt.pk,
            f"attempt {attempt.number}",
            anchor=output.stream if output else "",
        )
        if attempt
        else "",
        cell=page_link("cell", attempt.cell_id, attempt.cell.name) if attempt else "",
        ended=instant(task.finished_at) if task else "",
        output=output,
    )
