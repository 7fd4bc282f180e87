"""File transfers to and from an attempt."""
