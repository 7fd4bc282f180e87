"""Configure notifications to people, and send them."""
