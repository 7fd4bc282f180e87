"""Mistakes in what Flyte, Diego and Volcano oblige to, and in what no system does."""

from tests.mutations.row_mutation import (
    COMMANDS,
    DOMAIN,
    QUERIES,
    REPORTS,
    ROLLUP,
    SPEC,
    TABLE,
    of_row,
)

S1_2 = of_row(
    "S1.2",
    "test_s1_2_history",
    (
        "progress-is-history",
        REPORTS,
        "if said.phase and said.phase != attempt.phase:",
        "if said.phase:",
        "each percent of a pull is a line",
        "every_change_and_every_phase_is_a_line_of_its_own",
    ),
    (
        "short-lives-never-began",
        f"{DOMAIN}changes.py",
        "if ran_at is not None and state is not TaskState.RUNNING",
        "if ran_at is None and state is not TaskState.RUNNING",
        "the start of a short life is not in the history",
        "a_short_life_that_is_told_in_one_report_has_its_start_in_the_history",
    ),
    (
        "releases-are-silent",
        f"{DOMAIN}changes.py",
        "        steps=(step,),\n",
        "        steps=(),\n",
        "nobody can read when a place was given back",
        "the_release_of_a_stopped_attempt_is_a_line_too",
    ),
    (
        "lines-of-nobody",
        f"{COMMANDS}effects.py",
        '"uid": [change.attempt.uid if change.attempt else None for change, _ in steps],',
        '"uid": [None for change, _ in steps],',
        "a line does not say which attempt it is about",
        "each_line_names_the_attempt_that_it_is_about",
    ),
)

S1_6 = of_row(
    "S1.6",
    "test_s1_6_system_failures",
    (
        "four-by-default",
        f"{SPEC}parts.py",
        'default=3, ge=0, le=MAX_COUNT, description="Engine',
        'default=4, ge=0, le=MAX_COUNT, description="Engine',
        "the default is not Flyte's",
        "the_fourth_system_failure_in_a_row_is_final_by_default",
    ),
    (
        "ten-healthy-minutes",
        TABLE,
        "HEALTHY_RUN_SECONDS = 60.0",
        "HEALTHY_RUN_SECONDS = 600.0",
        "a run of a minute does not break a row of system failures",
        "an_attempt_that_stayed_running_for_a_minute_breaks_the_row",
    ),
    (
        "own-failures-break-no-row",
        TABLE,
        "if event in (Event.EXITED_ZERO, Event.USER_FAILED):",
        "if event in (Event.EXITED_ZERO,):",
        "a program that ran to its failure does not show that the system works",
        "users_failures_are_counted_apart",
    ),
    (
        "all-of-them-count",
        TABLE,
        "return counters.system_row",
        "return counters.system",
        "system failures count that were not in a row",
        "the_total_only_grows",
    ),
    (
        "same-cell-again",
        TABLE,
        "avoids_cell=rule.avoids_cell and requeued,",
        "avoids_cell=False,",
        "a task goes back to the cell that failed it",
        "the_next_attempt_avoids_the_cell",
    ),
    (
        "builds-have-one-time",
        f"{COMMANDS}statements.py",
        "state_since = CASE WHEN i.state_from <> i.state_to OR i.phase <> a.phase",
        "state_since = CASE WHEN i.state_from <> i.state_to",
        "a slow pull takes the time to create away",
        "each_phase_of_a_build_has_its_own_time",
    ),
)

S2_2 = of_row(
    "S2.2",
    "test_s2_2_at_most_once",
    (
        "once-is-often",
        f"{DOMAIN}changes.py",
        "is_final=facts.at_most_once and not cause.never_created,",
        "is_final=False,",
        "what was to run at most once runs again",
        "every_end_is_final_whatever_is_left_of_the_budgets",
    ),
    (
        "never-again",
        f"{DOMAIN}changes.py",
        "is_final=facts.at_most_once and not cause.never_created,",
        "is_final=facts.at_most_once,",
        "what never had a container is not tried again",
        "it_is_tried_again_once_its_cell_confirms_that_no_container_ever_was",
    ),
    (
        "never-but-not-gone",
        REPORTS,
        "never_created=report.never_created and report.gone",
        "never_created=report.never_created",
        "a container may still come, and the task runs again",
        "that_a_container_never_was_counts_only_with_its_being_gone",
    ),
    (
        "loss-is-a-word",
        f"{DOMAIN}convergence/lost_cells.py",
        "cause = Cause(Reason.CELL_LOST, release=ReleaseKind.CELL_LOST)",
        "cause = Cause(Reason.CELL_LOST, release=ReleaseKind.CELL_LOST, never_created=True)",
        "what may have run on a lost cell runs again",
        "an_order_without_an_answer_ends_with_the_loss_of_its_cell",
    ),
    (
        "bounced-all-the-same",
        f"{QUERIES}cascades.py",
        "ON g.id = t.group_id AND NOT g.at_most_once",
        "ON g.id = t.group_id",
        "a gang's bounce ends what may run only once",
        "a_gangs_bounce_spares_what_may_run_only_once",
    ),
    (
        "one-retry-is-taken",
        f"{SPEC}rules.py",
        "job.retries_of(group).failure > 0:",
        "job.retries_of(group).failure > 1:",
        "retries are promised that are never given",
        "retries_of_failures_are_refused",
    ),
)

S4_1 = of_row(
    "S4.1",
    "test_s4_1_minima",
    (
        "less-than-the-sum",
        f"{SPEC}rules.py",
        "if not least <= job.min_available <= most:",
        "if not job.min_available <= most:",
        "a job asks for less than its groups do",
        "a_minimum_below_the_sum_or_above_all_replicas_is_refused",
    ),
    (
        "more-than-there-are",
        f"{SPEC}rules.py",
        "group.min_available > group.replicas:",
        "group.min_available > group.replicas + 1:",
        "a group asks for more successes than it has tasks",
        "a_groups_minimum_above_its_replicas_is_refused",
    ),
    (
        "largest-instead-of-sum",
        f"{SPEC}job.py",
        "sum(map(minimum_of, self.groups)) if",
        "max(map(minimum_of, self.groups)) if",
        "the job's minimum is not the sum of its groups'",
        "the_jobs_minimum_is_by_default_the_sum_of_its_groups",
    ),
    (
        "nothing-by-default",
        f"{SPEC}job.py",
        "return group.replicas if group.min_available is None else group.min_available",
        "return 0 if group.min_available is None else group.min_available",
        "without a word no success is needed",
        "by_default_every_replica_is_needed",
    ),
)

S4_2 = of_row(
    "S4.2",
    "test_s4_2_gangs",
    (
        "minima-of-groups-are-nothing",
        f"{DOMAIN}gangs.py",
        "    needs = [max(group.min_available - group.present, 0) for group in groups]",
        "    needs = [0 for group in groups]",
        "a gang takes whatever members come first for the ones that its groups need",
        "what_is_beyond_the_minima_comes_as_there_is_room",
    ),
    (
        "jobs-minimum-counts-twice",
        f"{DOMAIN}gangs.py",
        "    more = min_available - sum(group.present for group in groups) - sum(needs)",
        "    more = min_available - sum(group.present for group in groups)",
        "a gang waits for members that it does not need",
        "the_jobs_own_minimum_counts_beside_its_groups",
    ),
    (
        "zones-do-not-matter",
        f"{QUERIES}placement.py",
        "            group_by=group_by,\n",
        '            group_by="",\n',
        "a gang is spread over cells of several zones",
        "group_by_keeps_it_on_cells_of_one_value_even_if_others_have_room",
    ),
)

S4_3 = of_row(
    "S4.3",
    "test_s4_3_final_status",
    (
        "just-enough-is-too-few",
        ROLLUP,
        "group.counts.get(S.SUCCEEDED, 0) >= group.min_available",
        "group.counts.get(S.SUCCEEDED, 0) > group.min_available",
        "a group with just enough successes fails its job",
        "a_job_of_three_groups_ends_as_volcano_says",
    ),
    (
        "groups-alone",
        ROLLUP,
        "return groups_met and succeeded >= tally.min_available",
        "return groups_met",
        "the job's own minimum is not asked for",
        "a_job_of_three_groups_ends_as_volcano_says",
    ),
    (
        "job-alone",
        ROLLUP,
        "return groups_met and succeeded >= tally.min_available",
        "return succeeded >= tally.min_available",
        "one group's plenty makes up for another's lack",
        "one_groups_plenty_does_not_make_up_for_anothers_lack",
    ),
)

S4_4 = of_row(
    "S4.4",
    "test_s4_4_counts",
    (
        "counted-once",
        f"{DOMAIN}moves.py",
        "shift[new] = shift.get(new, 0) + 1",
        "shift[new] = 1",
        "of several changes in one batch one is counted",
        "several_changes_in_one_batch_are_all_counted",
    ),
    (
        "counts-only-grow",
        f"{DOMAIN}moves.py",
        "shift[old] = shift.get(old, 0) - 1",
        "shift[old] = shift.get(old, 0) - 0",
        "a task is counted in two states",
        "the_counts_follow_every_single_change",
    ),
    (
        "nobody-is-excused",
        f"{DOMAIN}moves.py",
        "excused[group_id] = excused.get(group_id, 0) + 1",
        "excused[group_id] = excused.get(group_id, 0) + 0",
        "what a dependency killed is not told apart",
        "what_a_dependency_killed_is_counted_apart",
    ),
)

SUBMISSION = of_row(
    "Submission",
    "test_submission",
    (
        "any-body-for-a-guid",
        f"{COMMANDS}jobs.py",
        "if there.spec_digest != job.digest:",
        "if there.spec_digest is None:",
        "another job comes back than was asked for",
        "the_same_guid_and_body_give_the_same_job_another_body_a_conflict",
    ),
    (
        "rows-go-before-containers",
        f"{QUERIES}convergence/deletion.py",
        "WHERE j.deleted_at IS NOT NULL AND j.settled_at IS NOT NULL",
        "WHERE j.deleted_at IS NOT NULL",
        "a deleted job forgets the container that still runs",
        "the_rows_of_a_deleted_job_go_when_its_last_attempt_is_released",
    ),
)

DEPENDENCIES = of_row(
    "Dependencies",
    "test_dependencies",
    (
        "started-means-succeeded",
        f"{DOMAIN}dependencies.py",
        "met = job.started_at is not None or job.state is S.SUCCEEDED",
        "met = job.state is S.SUCCEEDED",
        "a job that waits for a start waits for the success",
        "a_job_starts_as_soon_as_the_other_has_come_so_far",
    ),
    (
        "all-must-fail",
        f"{COMMANDS}convergence/dependencies.py",
        "failed = next((item for item in waits if item.is_failed), None)",
        "failed = next((item for item in waits if all(one.is_failed for one in waits)), None)",
        "a job waits for ever for what can no longer come true",
        "all_must_hold_and_one_that_cannot_is_enough_to_end",
    ),
    (
        "first-success-is-enough",
        f"{DOMAIN}dependencies.py",
        "met = not is_open and succeeded >= group.min_available",
        "met = succeeded >= 1",
        "a group follows the first success of another",
        "a_group_waits_for_the_minimum_of_the_other_by_default_to_succeed",
    ),
)
