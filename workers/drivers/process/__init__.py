"""Plain processes of this machine, started by one spawner for each cell."""
