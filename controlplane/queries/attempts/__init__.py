"""What a cell is given of its attempts: group specs, briefing, gang, artifacts."""
