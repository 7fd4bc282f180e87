"""The overview: alerts, failures, open work, the last hour, cells and ticks."""
