"""Mistakes in what Diego obliges to: guids, lifecycles, claims, two minutes, short answers."""

from tests.mutations.row_mutation import COMMANDS, DOMAIN, QUERIES, REPORTS, SPEC, of_row

S2_1 = of_row(
    "S2.1",
    "test_s2_1_one_off_tasks",
    (
        "digits-are-a-guid",
        f"{SPEC}one_off.py",
        "if text.isdigit():",
        'if text == "":',
        "the address of one task may mean another",
        "a_malformed_guid_is_refused",
    ),
    (
        "building-does-not-run",
        f"{DOMAIN}jobs/one_offs.py",
        "state in (TaskState.BUILDING, TaskState.RUNNING)",
        "state in (TaskState.RUNNING,)",
        "what its cell has begun with is told as waiting",
        "it_is_pending_then_running_then_completed",
    ),
    (
        "waits-for-ever",
        f"{COMMANDS}jobs/one_off_submission.py",
        'return spec.model_copy(update={"scheduling_timeout_seconds": seconds})',
        "return spec",
        "for what finds no room nobody is ever told so",
        "without_room_it_says_why_it_waits_and_fails_in_bounded_time",
    ),
    (
        "tried-again-by-default",
        f"{SPEC}one_off.py",
        'default="at_most_once",',
        'default="at_least_once",',
        "a task that ran runs again elsewhere",
        "an_evacuated_cell_moves_only_what_never_ran",
    ),
    (
        "not-placed-is-told-in-other-words",
        f"{DOMAIN}state/states.py",
        "Reason.SCHEDULING_DEADLINE: REASONS[Reason.START_EXPIRED],",
        "Reason.REJECTED: REASONS[Reason.START_EXPIRED],",
        "clients do not recognise why it failed",
        "a_pool_may_say_how_long_it_waits",
    ),
)

S2_3 = of_row(
    "S2.3",
    "test_s2_3_resolving",
    (
        "two-claims",
        f"{COMMANDS}jobs/one_offs.py",
        "WHERE task_id = %s AND (claim IS NULL OR claimed_at <= %s) AND EXISTS (",
        "WHERE task_id = %s AND (TRUE OR claimed_at <= %s) AND EXISTS (",
        "two clients resolve the same task",
        "one_client_wins_and_the_others_are_told_by_whom",
    ),
    (
        "claimed-while-it-runs",
        f"{COMMANDS}jobs/one_offs.py",
        "WHERE t.id = task_id AND t.finished_at IS NOT NULL)",
        "WHERE t.id = task_id)",
        "a task is resolved that has not completed",
        "only_what_has_completed_is_claimed",
    ),
    (
        "any-claim",
        f"{COMMANDS}jobs/one_offs.py",
        "if claim is not None and claim != present:",
        "if False:",
        "a client whose claim is over deletes what another one resolves",
        "resolving_for_half_a_minute_is_completed_again",
    ),
    (
        "claimed-for-ever",
        f"{DOMAIN}convergence/policy.py",
        "claim_seconds: float = 30.0",
        "claim_seconds: float = 3000.0",
        "a client that dies keeps its task",
        "resolving_for_half_a_minute_is_completed_again",
    ),
    (
        "guid-kept",
        f"{COMMANDS}state/apply_sql.py",
        "DELETE FROM controlplane_oneoff o USING hidden h WHERE o.job_id = h.id",
        "DELETE FROM controlplane_oneoff o USING hidden h WHERE o.job_id = -h.id",
        "the guid of a deleted task stays taken",
        "what_is_deleted_leaves_one_line_and_its_guid_is_free",
    ),
)

S2_5 = of_row(
    "S2.5",
    "test_s2_5_answers",
    (
        "result-of-a-failure",
        f"{QUERIES}views/tasks.py",
        '"result": task.result if succeeded else None,',
        '"result": task.result,',
        "what a failed program left is taken for a result",
        "a_result_is_told_only_of_what_succeeded",
    ),
    (
        "other-nanoseconds",
        f"{DOMAIN}jobs/one_offs.py",
        "timedelta(microseconds=1) * 1_000",
        "timedelta(microseconds=1) * 1_000_000",
        "instants lie in another age",
        "instants_are_told_in_whole_microseconds_as_nanoseconds",
    ),
    (
        "exit-status-in-other-words",
        REPORTS,
        'text = f"exit status {report.exit_code}" if',
        'text = f"exit code {report.exit_code}" if',
        "clients do not recognise why it failed",
        "each_cause_has_one_short_text",
    ),
    (
        "cell-forgotten",
        f"{QUERIES}views/tasks.py",
        '"cell_id": None if waits else task.cell,',
        '"cell_id": None if waits or ended else task.cell,',
        "nobody knows where it ran",
        "the_cell_is_told_while_it_runs_and_kept",
    ),
)

S2_4 = of_row(
    "S2.4",
    "test_s2_4_two_minutes",
    (
        "kept-until-settled",
        f"{COMMANDS}state/apply_sql.py",
        "CASE WHEN j.is_one_off THEN i.finished_at",
        "CASE WHEN false THEN i.finished_at",
        "a container that does not stop keeps its task and guid",
        "it_is_deleted_though_its_container_is_still_being_stopped",
    ),
    (
        "kept-for-long",
        f"{SPEC}one_off.py",
        "TTL_SECONDS = 120",
        "TTL_SECONDS = 1200",
        "what nobody resolves piles up",
        "it_is_deleted_two_minutes_after_it_completed",
    ),
    (
        "gone-before-anybody-was-told",
        f"{QUERIES}convergence/deletion.py",
        "AND NOT (j.is_one_off AND k.is_tried)))",
        "AND NOT j.is_one_off))",
        "a client waits for a callback that never comes",
        "what_shall_be_told_of_stays_until_that_was_tried_once",
    ),
)
