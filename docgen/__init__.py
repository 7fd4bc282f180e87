"""Generate documentation pages and pictures from the code."""
