"""The OpenAPI description: as it is served, and its examples."""
