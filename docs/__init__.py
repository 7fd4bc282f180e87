"""The documentation, and the programs that write the parts of it that follow from the code."""
