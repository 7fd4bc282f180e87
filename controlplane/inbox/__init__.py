"""The inbox: messages from cells land here, are checked, and are applied in batches."""
