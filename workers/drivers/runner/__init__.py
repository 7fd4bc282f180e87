"""Task types of other packages: reconcilers that drive work outside the cell."""
