"""What is wrong, and what follows: a file for each rule of `commands.convergence.rules`."""
