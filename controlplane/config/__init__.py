"""Assembly of processes and settings. It may import any package; no package imports it."""
