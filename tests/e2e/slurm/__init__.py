"""What shares one stack, because none of it disturbs another test."""
