"""Documents and figures for the API, the client, the admin and metrics."""
