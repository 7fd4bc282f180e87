"""Rule 9: store results in the cache, pass keys on, look tasks up."""

from collections.abc import Mapping

from controlplane.commands.cache.lookup import search_cache
from controlplane.commands.cache.reservations import pass_on
from controlplane.commands.cache.store import store_results
from controlplane.commands.convergence.runner import RuleContext


def store(context: RuleContext) -> Mapping[str, int]:
    """Store the results of succeeded tasks."""
    return store_results(now=context.now)


def pass_keys_on(context: RuleContext) -> Mapping[str, int]:
    """Let waiters of free keys run, or look them up again."""
    return pass_on(now=context.now)


def find_results(context: RuleContext) -> Mapping[str, int]:
    """Look up tasks that may start."""
    return search_cache(now=context.now)
