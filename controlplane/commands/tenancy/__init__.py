"""Users, tokens, pools, quotas and secrets."""
