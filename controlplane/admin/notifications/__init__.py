"""Admin pages of notifications: addresses, rules and messages."""
