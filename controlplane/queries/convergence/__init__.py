"""What the rules of convergence have to look at, a file for each."""
