"""Parts of the web process around Django."""
