"""Django's backend of PostgreSQL, with cheaper checks of connections."""
