"""Output on a terminal: consoles, tables and pages of the objects of the API."""
