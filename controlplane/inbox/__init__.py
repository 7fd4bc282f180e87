"""The inbox: receive, verify and apply messages of cells in batches."""
