"""The commands of `cellrun`: each parses options, calls the session and renders the result."""
