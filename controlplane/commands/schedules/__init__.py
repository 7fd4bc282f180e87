"""Write schedules and fire them."""
