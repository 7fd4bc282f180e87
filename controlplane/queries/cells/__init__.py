"""What decisions about cells read."""
