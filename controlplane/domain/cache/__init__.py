"""The result cache: keys of tasks, and the rules of its entries and reservations; pure."""
