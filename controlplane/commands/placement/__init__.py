"""Carry out a placement plan: allocate, evict, reject, note why tasks wait."""
