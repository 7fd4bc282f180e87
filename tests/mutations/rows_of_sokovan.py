"""Mistakes in what Backend.AI obliges to: pools, plugins, allocation, and what is stuck."""

from tests.mutations.row_mutation import COMMANDS, DOMAIN, QUERIES, REPORTS, SPEC, of_row

PLACEMENT = f"{DOMAIN}placement/"

S3_1 = of_row(
    "S3.1",
    "test_s3_1_pools",
    (
        "pools-share-their-cells",
        f"{QUERIES}cells/capacity.py",
        "\"c.pool_id = %s AND c.incarnation <> ''\"",
        "\"c.pool_id >= %s AND c.incarnation <> ''\"",
        "a job runs in another pool than its own",
        "a_job_stays_in_its_pool_though_another_has_room",
    ),
    (
        "strict-is-not-strict",
        f"{PLACEMENT}cycle/pass_state.py",
        'if self.snapshot.policy.strict_fifo and reason.get("code") in _MISFITS:',
        'if self.snapshot.policy.strict_fifo and reason.get("code") not in _MISFITS:',
        "small tasks pass the first one in a strict pool",
        "a_strict_pool_stops_at_the_first_that_does_not_fit",
    ),
    (
        "unknown-plugins-are-saved",
        "controlplane/models/pools.py",
        "            if unknown:",
        "            if unknown and not known:",
        "a pool names a plugin that nobody has",
        "a_plugin_that_is_not_installed_is_refused_when_the_pool_is_saved",
    ),
)

S3_2 = of_row(
    "S3.2",
    "test_s3_2_plugins",
    (
        "one-more-than-the-limit",
        f"{PLACEMENT}plugins/validators/concurrency.py",
        "if limit is not None and request.new_jobs and jobs > limit:",
        "if limit is not None and request.new_jobs and jobs > limit + 1:",
        "the words say nothing of the limit that keeps a job back",
        "concurrency_counts_jobs_and_what_is_being_stopped_still_counts",
    ),
    (
        "what-is-used-does-not-count",
        f"{PLACEMENT}plugins/validators/quota.py",
        "            fitting = max(limit - used, 0) // each",
        "            fitting = limit // each",
        "each pass plans what no quota allows, and nobody is told why it waits",
        "a_quota_in_use_defers_and_says_used_requested_and_allowed",
    ),
    (
        "quotas-bind-every-pool",
        f"{PLACEMENT}model/policy.py",
        "resources=limits.resources if _RESOURCE_VALIDATORS[kind] in self.validators else {},",
        "resources=limits.resources,",
        "a pool plans what is then refused, again and again, and nobody is told why it waits",
        "a_pool_without_the_validator_of_a_quota_is_not_held_to_it",
    ),
    (
        "newest-last",
        f"{PLACEMENT}plugins/sequencers/lifo.py",
        "np.lexsort((-queue.job, ~queue.is_child))",
        "np.lexsort((queue.job, ~queue.is_child))",
        "LIFO is FIFO",
        "fifo_takes_the_oldest_and_lifo_the_newest",
    ),
    (
        "weights-are-all-one",
        f"{PLACEMENT}plugins/sequencers/fair_share.py",
        "return turns_by_share(queue, queue.weight_of)",
        "return turns_by_share(queue, lambda owner: 1.0)",
        "all have the same share, whatever their weight",
        "fair_share_gives_in_proportion_to_weights",
    ),
    (
        "packs-the-emptiest",
        f"{PLACEMENT}plugins/selectors/concentrated.py",
        "np.lexsort((offer.sizes, -utilisation(offer.capacity, offer.used)))",
        "np.lexsort((offer.sizes, utilisation(offer.capacity, offer.used)))[::-1]",
        "of cells that are alike the last one by name comes first",
        "concentrated_fills_one_cell_before_the_next",
    ),
    (
        "utilised-with-the-task",
        f"{PLACEMENT}plugins/selectors/concentrated.py",
        "-utilisation(offer.capacity, offer.used)",
        "-utilisation(offer.capacity, offer.used + offer.request[:, None])",
        "the smaller cell counts as more utilised, since the task would fill more of it",
        "utilisation_is_that_before_the_task_is_placed",
    ),
    (
        "whatever-size",
        f"{PLACEMENT}plugins/selectors/dispersed.py",
        "columns = (share[least], -offer.sizes[least], given[least], np.arange(len(least)))",
        "columns = (share[least], 0 * least, given[least], np.arange(len(least)))",
        "of equally utilised cells those of many tasks take turns, however large",
        "each_task_of_one_step_counts_as_in_use_for_the_next",
    ),
    (
        "kinds-set-what-they-like",
        "controlplane/domain/hooks/preparing.py",
        "for place, text in find_faults(prepared)",
        "for place, text in find_faults(spec)",
        "the rules between fields do not hold for what a kind sets",
        "a_kind_may_set_what_a_submission_may_and_no_more",
    ),
    (
        "hooks-may-hang",
        f"{COMMANDS}attempts/hook_calls.py",
        "ending = end_by_hook(event.job_id, Reason.HOOK_FAILED, text)",
        "return",
        "a job goes on whose hook failed at its placement or start",
        "a_hook_that_fails_ends_its_own_job_and_no_other",
    ),
    (
        "rounds-begin-anew",
        f"{PLACEMENT}plugins/selectors/round_robin.py",
        "order = np.roll(np.arange(len(given)), -offer.start)",
        "order = np.arange(len(given))",
        "the first cell by name gets all that comes one by one",
        "round_robin_goes_on_where_it_stopped",
    ),
)

S3_3 = of_row(
    "S3.3",
    "test_s3_3_allocation",
    (
        "full-cells-take-more",
        f"{COMMANDS}placement/allocate.py",
        "if left is None or any(amount > left.get(name, 0) for name, amount in request.items()):",
        "if left is None:",
        "a cell is given more than it has, if it was filled after the plan was made",
        "a_cell_that_was_filled_meanwhile_takes_only_what_still_fits",
    ),
    (
        "tokens-are-not-counted-again",
        f"{COMMANDS}placement/allocate.py",
        "    allowed = within_tokens(allowed, requests, limits.policy.tokens, limits.pool_id)\n",
        "",
        "a pool's tokens are held twice",
        "tokens_are_looked_at_again_when_tasks_are_placed",
    ),
    (
        "quotas-are-not-counted-again",
        f"{COMMANDS}placement/allocate.py",
        "    if limits.has_quotas:\n",
        "    if False:\n",
        "two passes at once go beyond a quota",
        "quotas_are_looked_at_again_when_tasks_are_placed",
    ),
    (
        "ended-is-gone",
        f"{QUERIES}cells/capacity.py",
        "WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id",
        "WHERE cell_id = ANY(%s) AND finished_at IS NULL GROUP BY cell_id, group_id",
        "what was told to stop has its place taken while it still runs",
        "what_has_ended_holds_its_place_until_its_cell_says_that_it_is_gone",
    ),
    (
        "parts-of-gangs-are-placed",
        f"{COMMANDS}placement/allocate.py",
        "    allowed = _without_parts_of_gangs(allowed, jobs)\n",
        "",
        "a gang begins in part when its plan was overtaken",
        "a_gang_of_which_a_part_no_longer_fits_is_left_out_whole",
    ),
)

S3_4 = of_row(
    "S3.4",
    "test_s3_4_preparation",
    (
        "tried-twice",
        "workers/attempt/stage_retry.py",
        "for number, seconds in enumerate(back_off, 1):",
        "for number, seconds in enumerate(back_off[1:], 1):",
        "a stage is tried less often than three times",
        "what_fails_and_then_works_is_tried_three_times_in_its_stage",
    ),
    (
        "mistakes-are-tried-again",
        REPORTS,
        "is_permanent = report.reason in PERMANENT",
        "is_permanent = False",
        "what cannot succeed uses up its budget",
        "a_program_that_does_not_exist_is_not_tried_again_whatever_the_budget",
    ),
    (
        "creations-have-the-time-of-pulls",
        f"{QUERIES}convergence/stuck_builds.py",
        "        ELSE p.create_timeout_seconds END),",
        "        ELSE p.pull_timeout_seconds END),",
        "a creation that hangs is given up as late as a pull",
        "a_creation_that_hangs_is_given_up_by_the_pools_time_for_creations",
    ),
)

S3_5 = of_row(
    "S3.5",
    "test_s3_5_termination",
    (
        "no-grace",
        "workers/attempt/attempt.py",
        "kill_at = time.monotonic() + (0.0 if force else max(grace_seconds, 0.0))",
        "kill_at = time.monotonic()",
        "a program has no time to end by itself",
        "a_program_that_ignores_sigterm_is_killed_when_its_grace_is_over",
    ),
    (
        "killed-without-sigterm",
        "workers/drivers/pipeline.py",
        "partial(self._send, attempt, attempt.launch.spec.stop_signal)",
        'partial(self._send, attempt, "KILL")',
        "a program gets no SIGTERM before it is killed",
        "a_program_gets_sigterm_and_may_end_before_its_grace_is_over",
    ),
    (
        "stops-are-sent-once",
        f"{COMMANDS}cells/messages.py",
        "cells.split_orders(answer.runs, answer.stops, specs)",
        "cells.split_orders(answer.runs, (), specs)",
        "what was to be stopped runs on when one message is lost",
        "a_stop_that_did_not_arrive_is_sent_again_until_it_is_confirmed",
    ),
)

S3_6 = of_row(
    "S3.6",
    "test_s3_6_pending",
    (
        "pools-set-no-bound",
        f"{QUERIES}convergence/unplaced.py",
        "        g.startable_at + make_interval(secs => p.pending_timeout_seconds), g.deadline_at)",
        "        g.deadline_at)",
        "a pool's timeout counts for no job",
        "each_pool_bounds_how_long_its_jobs_wait",
    ),
    (
        "pulls-have-the-time-of-creations",
        f"{QUERIES}convergence/stuck_builds.py",
        "        WHEN 'pulling' THEN p.pull_timeout_seconds",
        "        WHEN 'pulling' THEN p.create_timeout_seconds",
        "a pull is given up when a creation would be",
        "a_pull_or_a_creation_that_takes_too_long_is_a_system_failure",
    ),
    (
        "orders-wait-for-ever",
        f"{QUERIES}convergence/unanswered.py",
        "WHERE a.released_at IS NULL AND a.state = {S.ASSIGNED:d} AND a.start_before <= %(now)s",
        "WHERE a.released_at IS NULL AND a.state = {S.BUILDING:d} AND a.start_before <= %(now)s",
        "a task whose order was lost is assigned for ever",
        "an_order_without_an_answer_is_given_up_and_told",
    ),
)

S3_7 = of_row(
    "S3.7",
    "test_s3_7_cluster_sessions",
    (
        "ranks-begin-anew-in-each-group",
        "workers/attempt/steps/gang.py",
        '"CELLRUN_GANG_RANK": str(me.rank)',
        '"CELLRUN_GANG_RANK": str(me.index)',
        "two members of a gang have the same rank",
        "each_member_knows_its_rank_the_size_and_the_names_of_all",
    ),
    (
        "gangs-share-their-keys",
        f"{QUERIES}attempts/gang.py",
        'info=f"cellrun gang {job_id}".encode()',
        'info=b"cellrun gang"',
        "a member of one gang may log in to any other gang",
        "all_members_have_one_key_pair_and_another_gang_has_another",
    ),
    (
        "gangs-have-no-network",
        f"{SPEC}job.py",
        'return "gang" if self.coscheduled and group.task_type == "container" else "default"',
        'return "default"',
        "a gang that names no network shares the bridge with other jobs",
        "members_on_one_cell_reach_each_other_by_name_at_any_port_without_asking_for_it",
    ),
)
