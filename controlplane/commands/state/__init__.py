"""The only writer of state columns, with its SQL, transactions, messages and alerts."""
