"""Domain logic as pure functions: no Django, I/O, clock or randomness."""
