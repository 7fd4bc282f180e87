"""Selectors: how the tasks of one shape are spread over the cells that can take them."""
