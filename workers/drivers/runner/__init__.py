"""Task types of other packages: runners that reconcile work outside the cell."""
