"""The result cache: look tasks up, store results, pass keys on, evict entries."""
