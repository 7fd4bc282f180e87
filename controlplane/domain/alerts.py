"""Alerts that close automatically when they are not raised again."""

QUIET_SECONDS = {
    # Raised by each pass, tick or registration while the cause lasts.
    "plugin_failed": 600,
    "pool_skipped": 600,
    "no_room_made": 600,
    "shape_unreadable": 600,
    "job_skipped": 600,
    "registration_failed": 600,
    "rotation_failed": 600,
    "cell_twin": 600,
    "cell_flooding": 600,
    "inbox_batch_lost": 600,
    "inbox_dropped": 600,
    # Closed earlier by the component that raised them, unless its process died or has no work.
    "rule_failed": 600,
    "tick_late": 600,
    "files_not_deleted": 600,
    "store_full": 600,
    # A single event: open for a day, so that operators notice it.
    "repaired": 86_400,
}
"""Seconds after the last raise until an alert closes, by kind. Other alerts are closed by the
component that raised them."""
