"""Notifications by Apprise: check addresses, and send each message in a process of its own."""
