"""What invariants and recounts read."""
