"""One file per management command."""
