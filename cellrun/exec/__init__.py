"""A program in a running task, with the streams of this terminal: `cellrun exec`."""
