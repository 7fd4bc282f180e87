"""Mistakes in what Backend.AI obliges to: pools, plugins, allocation, and what is stuck."""

from tests.mutations.row_mutation import COMMANDS, DOMAIN, QUERIES, of_row

PLACEMENT = f"{DOMAIN}placement/"

S3_1 = of_row(
    "S3.1",
    "test_s3_1_pools",
    (
        "pools-share-their-cells",
        f"{QUERIES}cell_facts.py",
        "\"c.pool_id = %s AND c.incarnation <> ''\"",
        "\"c.pool_id >= %s AND c.incarnation <> ''\"",
        "a job runs in another pool than its own",
        "a_job_stays_in_its_pool_though_another_has_room",
    ),
    (
        "strict-is-not-strict",
        f"{PLACEMENT}one_pass.py",
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
        f"{PLACEMENT}validators/concurrency.py",
        "if limit is not None and request.new_jobs and jobs > limit:",
        "if limit is not None and request.new_jobs and jobs > limit + 1:",
        "the words say nothing of the limit that keeps a job back",
        "concurrency_counts_jobs_and_what_is_being_stopped_still_counts",
    ),
    (
        "what-is-used-does-not-count",
        f"{PLACEMENT}validators/quota.py",
        "            fitting = max(limit - used, 0) // each",
        "            fitting = limit // each",
        "each pass plans what no quota allows, and nobody is told why it waits",
        "a_quota_in_use_defers_and_says_used_requested_and_allowed",
    ),
    (
        "quotas-bind-every-pool",
        f"{PLACEMENT}policy.py",
        "resources=limits.resources if _OF_RESOURCES[kind] in self.validators else {},",
        "resources=limits.resources,",
        "a pool plans what is then refused, again and again, and nobody is told why it waits",
        "a_pool_without_the_validator_of_a_quota_is_not_held_to_it",
    ),
    (
        "newest-last",
        f"{PLACEMENT}sequencers/lifo.py",
        "np.lexsort((-queue.job, ~queue.is_child))",
        "np.lexsort((queue.job, ~queue.is_child))",
        "LIFO is FIFO",
        "fifo_takes_the_oldest_and_lifo_the_newest",
    ),
    (
        "weights-are-all-one",
        f"{PLACEMENT}sequencers/fair_share.py",
        "return turns_by_share(queue, queue.weight_of)",
        "return turns_by_share(queue, lambda owner: 1.0)",
        "all have the same share, whatever their weight",
        "fair_share_gives_in_proportion_to_weights",
    ),
    (
        "packs-the-emptiest",
        f"{PLACEMENT}selectors/concentrated.py",
        'np.argsort(-utilisation(offer.capacity, after), kind="stable")',
        'np.argsort(utilisation(offer.capacity, after), kind="stable")[::-1]',
        "of cells that are alike the last one by name comes first",
        "concentrated_fills_one_cell_before_the_next",
    ),
    (
        "rounds-begin-anew",
        f"{PLACEMENT}selectors/round_robin.py",
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
        f"{COMMANDS}placement.py",
        "if left is None or any(amount > left.get(name, 0) for name, amount in request.items()):",
        "if left is None:",
        "a cell is given more than it has, if it was filled after the plan was made",
        "a_cell_that_was_filled_meanwhile_takes_only_what_still_fits",
    ),
    (
        "tokens-are-not-counted-again",
        f"{COMMANDS}placement.py",
        "    allowed = within_tokens(allowed, requests, limits.policy.tokens, limits.pool_id)\n",
        "",
        "a pool's tokens are held twice",
        "tokens_are_looked_at_again_when_tasks_are_placed",
    ),
    (
        "quotas-are-not-counted-again",
        f"{COMMANDS}placement.py",
        "    if limits.has_quotas:\n",
        "    if False:\n",
        "two passes at once go beyond a quota",
        "quotas_are_looked_at_again_when_tasks_are_placed",
    ),
    (
        "ended-is-gone",
        f"{QUERIES}cell_facts.py",
        "WHERE cell_id = ANY(%s) AND released_at IS NULL GROUP BY cell_id, group_id",
        "WHERE cell_id = ANY(%s) AND finished_at IS NULL GROUP BY cell_id, group_id",
        "what was told to stop has its place taken while it still runs",
        "what_has_ended_holds_its_place_until_its_cell_says_that_it_is_gone",
    ),
    (
        "parts-of-gangs-are-placed",
        f"{COMMANDS}placement.py",
        "    allowed = _without_parts_of_gangs(allowed, jobs)\n",
        "",
        "a gang begins in part when its plan was overtaken",
        "a_gang_of_which_a_part_no_longer_fits_is_left_out_whole",
    ),
)

S3_6 = of_row(
    "S3.6",
    "test_s3_6_pending",
    (
        "pools-set-no-bound",
        f"{COMMANDS}jobs.py",
        "    if timeout is None and job.pool.pending_timeout_seconds is not None:",
        "    if timeout is not None and job.pool.pending_timeout_seconds is not None:",
        "a pool's bound counts only for those that have one of their own",
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
        "WHERE a.released_at IS NULL AND a.state = 9 AND a.start_before <= %(now)s",
        "WHERE a.released_at IS NULL AND a.state = 2 AND a.start_before <= %(now)s",
        "a task whose order was lost is assigned for ever",
        "an_order_without_an_answer_is_given_up_and_told",
    ),
)
