"""REST endpoints: parse a request, call one command or query, and render the result."""
