"""Notifications to people: what a rule selects, when it sends, and what a message contains."""
