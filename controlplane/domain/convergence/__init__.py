"""What is wrong, and what follows: one rule per file; `converge` lists them, and their order is
the specification.
"""
