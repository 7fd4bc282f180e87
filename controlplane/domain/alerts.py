"""Alerts that close automatically because no other component would resolve them."""

QUIET_SECONDS = {
    # Raised again by each pass, tick or registration while the cause lasts.
    "plugin_failed": 600,
    "pool_skipped": 600,
    "no_room_made": 600,
    "shape_unreadable": 600,
    "job_skipped": 600,
    "registration_failed": 600,
    "cell_twin": 600,
    "cell_flooding": 600,
    "inbox_batch_lost": 600,
    # The component that raised them closes them earlier, unless its process died or has no work.
    "rule_failed": 600,
    "tick_late": 600,
    "files_not_deleted": 600,
    # A single event: open for a day, so that an operator sees it.
    "repaired": 86_400,
}
"""By kind: seconds without a new raise until the alert closes. The component that raised any other
alert closes it."""
