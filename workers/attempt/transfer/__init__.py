"""Files on their way to and from an attempt."""
