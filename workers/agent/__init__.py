"""The cell: takes orders, keeps its attempts, renews its lease and reports until acknowledged."""
