"""Reports and uploads of cells, and release by an operator."""
