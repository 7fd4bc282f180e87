"""Alerts that close automatically because no other component would resolve them."""

QUIET_SECONDS = {
    # Tried again with each pass, tick or registration: what was not found so for as long is over.
    "plugin_failed": 600,
    "pool_skipped": 600,
    "no_room_made": 600,
    "shape_unreadable": 600,
    "job_skipped": 600,
    "registration_failed": 600,
    "cell_twin": 600,
    "cell_flooding": 600,
    "inbox_batch_lost": 600,
    # Whoever raised them closes them, sooner: but that process may die, or have no more work.
    "rule_failed": 600,
    "tick_late": 600,
    "files_not_deleted": 600,
    # An event, over as soon as it is told: open for a day, so that somebody sees it.
    "repaired": 86_400,
}
"""By kind, after how long without being raised again. Any other is closed by whoever raised it."""
