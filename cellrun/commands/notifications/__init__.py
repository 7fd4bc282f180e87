"""Commands about addresses, rules and messages of notifications."""
