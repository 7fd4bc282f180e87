"""The plans of the hottest statements with a million tasks: `make plans`."""
