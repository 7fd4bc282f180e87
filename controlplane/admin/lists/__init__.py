"""Lists of rows: pages, bounded counts, and headers."""
