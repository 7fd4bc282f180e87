"""The statements that find work for the rules of convergence."""
