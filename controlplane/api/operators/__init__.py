"""Endpoints for operators: cells, pools, quotas, secrets, callbacks, health and metrics."""
