"""What a scheduling cycle reads."""
