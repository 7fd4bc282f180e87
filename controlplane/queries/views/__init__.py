"""What people are shown: documents for API, command, admin and metrics."""
