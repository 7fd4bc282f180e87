"""What decisions about jobs read."""
