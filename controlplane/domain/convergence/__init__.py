"""What is wrong, and what follows: `converge` lists the rules in the order that is specified."""
