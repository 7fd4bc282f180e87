"""Mistakes in the firing of schedules, which the simulation must find."""

from tests.mutations.catalogue import Mutation

_D, _C = "controlplane/domain/schedules/", "controlplane/commands/schedules/"
_NEEDS = "schedules"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "resumed-schedule-fires-its-pause",
        f"{_C}configure.py",
        "        schedule.next_at = None if paused else calendar.next_after(now)\n",
        "        schedule.next_at = None if paused else calendar.next_after(schedule.updated_at)\n",
        "instants of a pause start jobs",
        needs=_NEEDS,
        within=25,
    ),
    Mutation(
        "deactivated-owner-starts-jobs",
        f"{_C}jobs.py",
        "        elif refusal := refuse_owner(job.schedule, access):\n",
        '        elif refusal := refuse_owner(job.schedule, access) and "":\n',
        "the jobs of a deactivated user start",
        needs=_NEEDS,
        within=20,
    ),
    Mutation(
        "queue-does-not-wait",
        "controlplane/queries/schedules.py",
        "    WHERE f.outcome = '{Outcome.WAITING}' AND NOT s.is_paused AND NOT EXISTS ({_OPEN})",
        "    WHERE f.outcome = '{Outcome.WAITING}' AND NOT s.is_paused",
        "two jobs of a queue run at the same time",
        needs=_NEEDS,
        within=20,
    ),
    Mutation(
        "zone-is-utc",
        f"{_D}calendar.py",
        "_LocalCron(self._cron, at.astimezone(self._zone)):",
        "_LocalCron(self._cron, at.astimezone(UTC)):",
        "schedules fire by the clock of UTC",
        needs=_NEEDS,
        within=20,
    ),
    Mutation(
        "replaced-job-goes-on",
        f"{_C}fire.py",
        "            _cancel_jobs(item.schedule, item.replaced_jobs, owner, now)\n",
        "            pass\n",
        "an instant that replaces starts its job, and the jobs before it go on",
        needs=_NEEDS,
        within=3,
    ),
    Mutation(
        "jobs-of-former-ticks-go-on",
        f"{_C}fire.py",
        "        return [*self.load.open_jobs, *found]\n",
        "        return found\n",
        "only the jobs of instants of the same tick are replaced",
        needs=_NEEDS,
        within=3,
    ),
    Mutation(
        "pause-drops-the-job-of-a-dead-process",
        f"{_C}configure.py",
        "        record_submitted(schedule, now=now)\n",
        "",
        "a job whose process died before it was recorded stays without a line after a pause",
        scenario="tests/integration/loop/test_schedules.py"
        "::test_job_of_a_dead_process_is_recorded_when_the_schedule_is_paused_or_changed",
    ),
)
