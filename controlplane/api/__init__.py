"""REST doors: parse, call one command or query, render."""
