"""What a cell receives about its attempts: group specs, launch context, gang, artifacts."""
